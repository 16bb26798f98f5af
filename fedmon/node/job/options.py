"""The options of `fedmon job` and `fedmon job merge`; perfmon's names and defaults where perfmon has them."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.text import sound
from fedmon.node.measure.sampler import MIN_INTERVAL_S

if TYPE_CHECKING:
    from fedmon.common.settings.broker import BrokerSettings

MAX_PERIOD_S = 86_400.0
MAX_IN_MEMORY_S = 10.0
"""Samples are on the disk after this time, however long the check point is."""
LABELS = ("system", "partition", "env", "name")
_MAX_TEXT = 200

_ABOUT = """Measure a batch job from inside its script, or run and measure a COMMAND: machine, job and devices.

Results go into a folder; one line at the start and one at the end go to stderr. Measuring ends with the job's
processes or the command, before the scheduler's time limit, with SIGTERM, SIGINT or SIGUSR1, or when FINISHED is
written into .ipc-JOBID. Then all hosts' recordings are merged, and tables and report are written. Below a scheduler's
daemon or a launcher it waits for more processes of the job, such as the next step.

With a COMMAND, it ends with the exit code of that COMMAND."""
_ABOUT_MERGE = "Merge the recordings of all hosts so far. It can be repeated, and merges dead hosts, too."


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run; ``interval`` and ``check_point`` are in seconds.

    ``command`` is empty if an existing job is measured.
    """

    save_dir: Path
    prefix: str | None = None
    launcher: str = "auto"
    interval: float = 30.0
    check_point: float = 900.0
    gen_report: bool = False
    export: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    verbose: bool = False
    quiet: bool = False
    json: bool = False
    pids: tuple[int, ...] = ()
    broker: BrokerSettings | None = None
    command: tuple[str, ...] = ()

    @property
    def hold_s(self) -> float:
        """How long a sample may wait for the disk, in seconds."""
        most = 0.95 * min(self.check_point, MAX_IN_MEMORY_S)
        # No other sample shares the commit when the next one is further away.
        return 0.0 if self.interval >= most else most

    @property
    def printable_command(self) -> list[str]:
        """The words of the command, for a description."""
        return [sound(word) for word in self.command]

    def document(self) -> dict[str, Any]:
        """Return the options for a description under perfmon's names, without the broker's user."""
        return {
            "save_dir": sound(str(self.save_dir)),
            "prefix": self.prefix,
            "launcher": self.launcher,
            "sampling_freq": self.interval,
            "check_point": self.check_point,
            "gen_report": self.gen_report,
            "export": list(self.export),
            **{name: self.labels.get(name) for name in LABELS},
            "verbose": self.verbose,
            "pid": list(self.pids),
            "broker": None if self.broker is None else self.broker.url,
            "command": self.printable_command,
        }


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers by verb, ``job`` and ``job merge``; also for the page of all commands."""
    job = _Parser("fedmon job", "[OPTIONS] [-- COMMAND ...]", _ABOUT)
    add = job.options.add_argument
    add("-d", "--save_dir", type=Path, metavar="<path>", default=Path(),
        help="Folder that all hosts of the job share.  [default: ($PWD)]")  # fmt: skip
    add("-p", "--prefix", metavar="<text>", help="Name of the job's folder there.  [default: (job-metrics-JOBID)]")
    add("-l", "--launcher", metavar="<text>", default="auto", help="Launcher of the job's ranks.  [default: auto]")
    add("-i", "--interval", type=float, metavar="<number>", default=30.0,
        help="Seconds between two samples.  [default: 30.0]")  # fmt: skip
    add("--sampling_freq", dest="interval", type=float, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("-c", "--check_point", type=float, metavar="<number>", default=900.0,
        help="Seconds after which samples are on the disk; 10 at most.  [default: 900.0]")  # fmt: skip
    _add_outputs(job)
    for name, what in zip(
        LABELS, ("name of the system", "name of the partition", "software environment", "name of the run"), strict=True
    ):
        add(f"--{name}", metavar="<text>", help=f"Label: {what}.")
    add("--pid", dest="pids", action="append", type=int, metavar="<integer>", default=[],
        help="A process of the job, with all its descendants.")  # fmt: skip
    add("--broker", metavar="URL", help="Also stream to this broker; user and TLS: FEDMON_BROKER_...")
    add("-v", "--verbose", action="store_true", help="Log more, and write the run's configuration.")
    add("-q", "--quiet", action="store_true", help="Print no line at the start and at the end.")
    add("--json", action="store_true", help="Print one JSON document at the end; to stderr beside a command.")
    job.add_argument_group("Commands", "merge  Merge the recordings of all hosts so far.")

    merge = _Parser("fedmon job merge", "[OPTIONS] FOLDER", _ABOUT_MERGE)
    arguments = merge.add_argument_group("Arguments")
    # After --export it is read as one of the formats.
    arguments.add_argument("folder", nargs="*", metavar="FOLDER", help="The job's folder, such as job-metrics-4711.")
    _add_outputs(merge)
    merge.options.add_argument("--json", action="store_true", help="Print one JSON document.")
    for parser in (job, merge):
        parser.options.add_argument("-h", "--help", action="help", help="Show this message and exit.")
    return {"job": job, "job merge": merge}


def read(words: Sequence[str], environ: Mapping[str, str]) -> JobOptions:
    """Return the options of a run. Raises InvalidInputError and SettingsError; ends the process after ``--help``."""
    words, command = list(words), []
    if "--" in words:
        place = words.index("--")
        words, command = words[:place], words[place + 1 :]
        if not command:
            raise InvalidInputError("no command after '--'")
    given, others = parsers()["job"].parse_known_args(words)
    if others:
        raise InvalidInputError(
            f"no such option: {others[0]}; see: fedmon job --help"
            if others[0].startswith("-")
            else f"unexpected {others[0]!r}: a command to run comes after '--': fedmon job -- {others[0]}"
        )
    found = vars(given)
    if found["broker"] is not None:
        from fedmon.common.settings.sources import load_broker

        found["broker"] = load_broker(found["broker"], environ)
    labels = {name: text for name in LABELS if (text := found.pop(name)) is not None}
    found["save_dir"] = absolute(found["save_dir"])
    for name in ("export", "pids"):
        found[name] = tuple(dict.fromkeys(found[name]))
    return checked(JobOptions(**found, labels=labels, command=tuple(command)))


def checked(options: JobOptions) -> JobOptions:
    """Return usable options. Raises InvalidInputError that names the option and its values."""
    for option, seconds, least in (
        ("-i/--interval", options.interval, MIN_INTERVAL_S),
        ("-c/--check_point", options.check_point, 0.0),
    ):
        if not least <= seconds <= MAX_PERIOD_S:
            raise InvalidInputError(
                f"{option} is a period in seconds, from {least:g} to {MAX_PERIOD_S:g}; got {seconds:g}"
            )
    for option, text in (("-l/--launcher", options.launcher), *((f"--{n}", t) for n, t in options.labels.items())):
        if not text.strip() or len(text) > _MAX_TEXT or not text.isprintable():
            raise InvalidInputError(f"{option} takes 1 to {_MAX_TEXT} printable characters")
    if options.pids and options.command:
        raise InvalidInputError("give either --pid, for processes that run already, or '-- COMMAND', not both")
    check_formats(options.export)
    return options


def check_formats(names: Sequence[str]) -> None:
    """Raise InvalidInputError if a table cannot be written in one of these formats."""
    if not names:
        return
    from fedmon.report.export import FORMATS

    for name in names:
        if name not in FORMATS:
            raise InvalidInputError(
                f"-e/--export does not know {name!r}: it takes one or more of {', '.join(FORMATS)}"
                " (a command to run comes after '--')"
            )


def absolute(path: Path) -> Path:
    """Return a folder's absolute path. Raises InvalidInputError."""
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError) as error:  # the present folder was removed, or this user has no home
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidInputError(f"the folder {path} cannot be used: {why}") from None


class _Parser(argparse.ArgumentParser):
    """Help in the form of the other verbs; a mistake is raised as InvalidInputError."""

    def __init__(self, line: str, usage: str, about: str) -> None:
        super().__init__(
            prog=line, usage=f"%(prog)s {usage}", description=about, add_help=False,
            allow_abbrev=False, formatter_class=_Help,
        )  # fmt: skip
        self.options = self.add_argument_group("Options")

    def error(self, message: str) -> NoReturn:
        """Raise the mistake."""
        raise InvalidInputError(f"{message.removeprefix('argument ')}; see: {self.prog} --help")


class _Help(argparse.HelpFormatter):
    """Writes ``-i, --interval <float>`` where argparse repeats the value."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=min(100, shutil.get_terminal_size().columns))

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Begin with a capital letter, as the other verbs do."""
        super().add_usage(usage, actions, groups, prefix or "Usage: ")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(super(_Help, self)._fill_text(part, width - 2, indent or "  ") for part in parts)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        return f"{names}{f' {action.metavar}' if action.metavar else ''}".strip()


def _add_outputs(parser: _Parser) -> None:
    add = parser.options.add_argument
    add("-r", "--gen_report", action="store_true", help="Write a report, as a page of HTML.")
    add("-e", "--export", nargs="+", action="extend", metavar="FORMAT ...", default=[],
        help="Write tables: csv parquet feather orc hdf5 pickle json-lines openmetrics influx.")  # fmt: skip
