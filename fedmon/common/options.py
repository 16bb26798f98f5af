"""Options that verbs of several packages share, one word with one meaning, and how verbs end by signals."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmon.common.errors import InvalidInputError

BrokerOption = Annotated[
    str | None, typer.Option("--broker", "-b", metavar="URL", help="Broker URL (default: from settings).")
]
SettingsOption = Annotated[Path | None, typer.Option("--settings", help="Settings file (default: the usual one).")]
IdOption = Annotated[str | None, typer.Option("--researcher", help="Researcher id (default: from settings).")]
TimeoutOption = Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait at most.")]
ForOption = Annotated[
    float | None, typer.Option("--for", min=0.1, help="Seconds to go on (default: until the end, or Ctrl-C).")
]
IntervalOption = Annotated[
    float | None, typer.Option("--interval", help="Seconds between samples (default, and at most: each owner's).")
]
NodesOption = Annotated[
    list[str] | None, typer.Option("--node", "-n", help="Only this node; may be given several times, or as a,b,c.")
]
MetricsOption = Annotated[
    list[str] | None, typer.Option("--metric", "-m", help="Only these metrics, with * and ?; may be repeated.")
]
ArgOption = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", "-a", metavar="NAME=VALUE|JSON", help="An argument, or a JSON object of several; repeatable."
    ),
]
JobOption = Annotated[str | None, typer.Option("--job", help="Only this job, if there are several.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Only from then on: 2026-11-21T10:00 (UTC) or Unix seconds.")
]
UntilOption = Annotated[str | None, typer.Option("--until", help="Only until then.")]
RecordingsArgument = Annotated[list[Path], typer.Argument(help="Recordings, or folders of them such as that of a job.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")]


def each(words: list[str] | None, option: str = "--node") -> list[str] | None:
    """Return words given one by one or separated by commas; None if the option was not given.

    Raises InvalidInputError for empty words, such as an unset variable of the shell.
    """
    found = [part.strip() for word in words or () for part in word.split(",") if part.strip()]
    if words and not found:
        raise InvalidInputError(f"{option} names none: is a variable of the shell empty?")
    return found or None


def clean_up_at_signals() -> None:
    """Have SIGTERM and a closed terminal end this process as an exception does, unless they are ignored."""

    def end(number: int, _frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):  # the end of a session sends both, and a shell SIGHUP again
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
