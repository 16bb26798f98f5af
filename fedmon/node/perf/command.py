"""The command lines of perf."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fedmon.node.perf.event import Group

SEPARATOR = ";"
"""Between the columns: a comma may stand inside of numbers and raw events."""


class WholeMachine(msgspec.Struct, frozen=True, tag=True):
    """Everything that runs."""


class InCgroup(msgspec.Struct, frozen=True, tag=True):
    """Everything that runs in one cgroup now and later; ``name`` is as perf calls it."""

    name: str


class Processes(msgspec.Struct, frozen=True, tag=True):
    """These processes with all their threads, and every child that they fork from now on."""

    pids: tuple[int, ...]


Target = WholeMachine | InCgroup | Processes


def count(perf: str, groups: Sequence[Group], target: Target, *, interval_s: float, log_fd: int) -> list[str]:
    """Return the command that prints counts every ``interval_s`` onto an open descriptor, until SIGINT."""
    command = _stat(perf, groups)
    command += ["-I", str(round(interval_s * 1000)), "--log-fd", str(log_fd)]
    match target:
        case WholeMachine():
            return [*command, "-a"]
        case InCgroup():
            return [*command, "-a", "--for-each-cgroup", target.name]
        case Processes():
            return [*command, "-p", ",".join(map(str, target.pids))]


def try_out(perf: str, group: Group, workload: str, *, whole_machine: bool) -> list[str]:
    """Return the command that counts one group while a trivial program runs."""
    return [*_stat(perf, [group]), *(["-a"] if whole_machine else []), "--", workload]


def _stat(perf: str, groups: Sequence[Group]) -> list[str]:
    command = [perf, "stat", "-x", SEPARATOR]
    for group in groups:
        command += ["-e", group.spelling()]
    return command
