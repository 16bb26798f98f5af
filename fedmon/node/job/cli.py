"""`fedmon job`: measure a batch job, or a command, from inside.

This module explains the verb and refuses wrong words; `start` reads plain words without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedmon.common.errors import InvalidInputError
from fedmon.node.job.options import CHECK_POINT_S, SAMPLING_FREQ_S, JobOptions, checked
from fedmon.node.job.start import FORMATS, absolute, asked, run

_COMMAND = "fedmon.job.command"
EXIT_CODES = (
    "Exit codes: that of the command, where there is one; else 0 done, 1 failed, 2 wrong use or a folder that cannot"
    " be written, 3 the job was not found."
)


class JobGroup(TyperGroup):
    """Takes what follows ``--`` as the command, word by word, and several words after one ``-e``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the command away before anybody reads its words as options of ours."""
        words, command = list(args), None
        if "--" in words:
            place = words.index("--")
            words, command = words[:place], words[place + 1 :]
            if not command:
                raise InvalidInputError("there is no command after '--'")
        ctx.meta[_COMMAND] = tuple(command or ())
        if not words and command is None and self.no_args_is_help:
            return super().parse_args(ctx, [])
        return super().parse_args(ctx, _one_by_one(words))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a verb below ours, and say what to do with a word that is none."""
        if args and args[0] not in self.commands:
            raise InvalidInputError(
                f"{args[0]!r} is no option; a command to run comes after '--': fedmon job -- {args[0]}"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="job",
    cls=JobGroup,
    invoke_without_command=True,
    subcommand_metavar="[-- COMMAND ...]",
    epilog=EXIT_CODES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Formats = Annotated[
    list[str] | None,
    typer.Option("-e", "--export", metavar="FORMAT ...", help="Write tables: csv hdf5 parquet pickle feather orc."),
]
Report = Annotated[bool, typer.Option("-r", "--gen_report", help="Write a report, as PDF and HTML.")]


@app.callback(epilog=EXIT_CODES)
def job(  # noqa: PLR0917 - each is an option, and none is given by its place
    ctx: typer.Context,
    save_dir: Annotated[
        Path | None,
        typer.Option("-d", "--save_dir", help="Folder that all hosts of the job share.", show_default="$PWD"),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option("-p", "--prefix", help="Name of the job's folder in it.", show_default="job-metrics-JOBID"),
    ] = None,
    launcher: Annotated[str, typer.Option("-l", "--launcher", help="What starts the job's ranks.")] = "auto",
    sampling_freq: Annotated[
        float, typer.Option("-i", "--sampling_freq", help="Seconds between two samples.")
    ] = SAMPLING_FREQ_S,
    check_point: Annotated[
        float, typer.Option("-c", "--check_point", help="Seconds after which samples are on the disk; 10 at most.")
    ] = CHECK_POINT_S,
    gen_report: Report = False,
    export: Formats = None,
    system: Annotated[str | None, typer.Option("--system", help="Label: name of the system.")] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="Label: name of the partition.")] = None,
    env: Annotated[str | None, typer.Option("--env", help="Label: the software environment.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Label: name of the run.")] = None,
    pids: Annotated[
        list[int] | None, typer.Option("--pid", help="A process of the job, with all that descends from it.")
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="URL", help="Stream to this broker, too; user and TLS: FEDMON_BROKER_..."),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log more, and write what was asked for.")] = False,
) -> None:
    """Measure a batch job from inside its script, or a COMMAND that is run: machine, job and devices.

    Everything goes into a folder, and nothing onto the job's output. The measuring ends with the job's processes or
    the command, before the scheduler's time limit, with SIGTERM, SIGINT or SIGUSR1, or when FINISHED is written into
    the file .ipc-JOBID; then the recordings of all hosts are merged, and tables and report are written. Below a
    scheduler's daemon or a launcher it waits for more processes of the job, such as those of the next step.
    """
    if ctx.invoked_subcommand is not None:
        return
    given = {
        "save_dir": save_dir, "prefix": prefix, "launcher": launcher, "sampling_freq": sampling_freq,
        "check_point": check_point, "gen_report": gen_report, "export": export, "system": system,
        "partition": partition, "env": env, "name": name, "pids": pids, "broker": broker, "verbose": verbose,
        "command": ctx.meta[_COMMAND],
    }  # fmt: skip
    raise typer.Exit(run(asked(given)))


@app.command("merge", epilog=EXIT_CODES)
def merge(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The job's folder, such as job-metrics-4711.")],
    gen_report: Report = False,
    export: Formats = None,
) -> None:
    """Merge what all hosts recorded so far; also when a host died, and as often as you like."""
    from fedmon.node.job.tool import merge_again

    folder = absolute(folder)
    options = checked(JobOptions(save_dir=folder, export=tuple(dict.fromkeys(export or ())), gen_report=gen_report))
    for path in merge_again(folder, exports=options.export, report=gen_report):
        print(path)


def _one_by_one(words: list[str]) -> list[str]:
    """Give each word after ``-e`` an option of its own: ``-e csv orc`` becomes ``-e csv -e orc``."""
    found: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word not in FORMATS:
            found.append(word)
            continue
        first = place
        while place < len(words) and not words[place].startswith("-"):
            found += [word, words[place]]
            place += 1
        if place == first:
            raise InvalidInputError(f"{word} takes one or more formats, such as: {word} csv parquet")
    return found
