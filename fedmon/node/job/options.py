"""What `fedmon job` is asked for, checked once; names, defaults and meaning are perfmon's where perfmon has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.node.measure.sampler import MIN_INTERVAL_S

if TYPE_CHECKING:
    from fedmon.common.settings import BrokerSettings

SAMPLING_FREQ_S = 30.0
CHECK_POINT_S = 900.0
MAX_PERIOD_S = 86_400.0
MAX_IN_MEMORY_S = 10.0
"""Samples wait no longer than this until they are on the disk, however long the check point is."""
LABELS = ("system", "partition", "env", "name")
_MAX_TEXT = 200
_MAX_PIDS = 1024
_MAX_PID = 2**22


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run; ``sampling_freq`` and ``check_point`` are periods in seconds.

    ``labels`` are the owner's words for the run, ``command`` is empty where an existing job is measured.
    """

    save_dir: Path
    prefix: str | None = None
    launcher: str = "auto"
    sampling_freq: float = SAMPLING_FREQ_S
    check_point: float = CHECK_POINT_S
    gen_report: bool = False
    export: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    verbose: bool = False
    pids: tuple[int, ...] = ()
    broker: BrokerSettings | None = None
    command: tuple[str, ...] = ()

    @property
    def hold_s(self) -> float:
        """How long a sample may wait for the disk, in seconds."""
        most = 0.95 * min(self.check_point, MAX_IN_MEMORY_S)
        # Nothing comes to share the commit with a sample when the next one is farther away.
        return 0.0 if self.sampling_freq >= most else most

    @property
    def told_command(self) -> list[str]:
        """The words of the command as they are written down."""
        return [_readable(word) for word in self.command]

    def told(self) -> dict[str, Any]:
        """Return the options as they are written down, without what belongs to the broker's user."""
        return {
            "save_dir": _readable(str(self.save_dir)),
            "prefix": self.prefix,
            "launcher": self.launcher,
            "sampling_freq": self.sampling_freq,
            "check_point": self.check_point,
            "gen_report": self.gen_report,
            "export": list(self.export),
            **{name: self.labels.get(name) for name in LABELS},
            "verbose": self.verbose,
            "pid": list(self.pids),
            "broker": None if self.broker is None else self.broker.url,
            "command": self.told_command,
        }


def _readable(text: str) -> str:
    """Return a text with what is no Unicode as its code: names of files need not be UTF-8, and ours are."""
    return text.encode("utf-8", "backslashreplace").decode()


def checked(options: JobOptions) -> JobOptions:
    """Return options that can be used as they are. Raises InvalidInputError naming the option and what it takes."""
    _check_period("-i/--sampling_freq", options.sampling_freq, least=MIN_INTERVAL_S)
    _check_period("-c/--check_point", options.check_point, least=0.0)
    for option, text in (("-l/--launcher", options.launcher), *((f"--{n}", t) for n, t in options.labels.items())):
        if not text.strip() or len(text) > _MAX_TEXT or not _is_text(text):
            raise InvalidInputError(f"{option} takes 1 to {_MAX_TEXT} characters, and none that cannot be printed")
    for pid in options.pids:
        if not 0 < pid <= _MAX_PID:
            raise InvalidInputError(f"--pid {pid}: process ids are from 1 to {_MAX_PID}")
    if len(options.pids) > _MAX_PIDS:
        raise InvalidInputError(f"--pid can be given {_MAX_PIDS} times at most; name the processes they descend from")
    if options.pids and options.command:
        raise InvalidInputError("give either --pid, for processes that run already, or '-- COMMAND', not both")
    if any("\0" in word for word in options.command):
        raise InvalidInputError("a word of the command holds a NUL")
    if options.export:
        _check_formats(options.export)
    return options


def _check_period(option: str, seconds: float, *, least: float) -> None:
    if not (math.isfinite(seconds) and least <= seconds <= MAX_PERIOD_S):
        raise InvalidInputError(f"{option} is a period in seconds, from {least:g} to {MAX_PERIOD_S:g}; got {seconds:g}")


def _check_formats(names: Sequence[str]) -> None:
    from fedmon.report.export import FORMATS

    for name in names:
        if name not in FORMATS:
            raise InvalidInputError(
                f"-e/--export does not know {name!r}: it takes one or more of {', '.join(FORMATS)}"
                " (a command to run comes after '--')"
            )


def _is_text(text: str) -> bool:
    return text.isprintable() and not any(0xD800 <= ord(character) < 0xE000 for character in text)
