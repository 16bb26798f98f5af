"""Tries out each group on a trivial program, before anything relies on it."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator

from fedmon.node.collectors.base import Why
from fedmon.node.perf.command import try_out
from fedmon.node.perf.event import Group
from fedmon.node.perf.output import NOT_SUPPORTED, parse_line

PLAIN = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of perf: without the user's language, which changes how numbers are written."""

_TIMEOUT_S = 3.0
_PERMISSION = ("perf_event_paranoid", "permission", "not permitted", "access to performance monitoring")


def try_group(perf: str, group: Group, *, whole_machine: bool, paranoia: str) -> str | None:
    """Run one group while ``true`` runs; return None when every event was counted, else the reason.

    Takes some 20 ms, and is given up after 3 s.
    """
    workload = shutil.which("true", path=PLAIN["PATH"]) or "true"
    command = try_out(perf, group, workload, whole_machine=whole_machine)
    try:
        with signals_reach_children():
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_TIMEOUT_S,
                env=PLAIN,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"{Why.FAILED.value}: perf did not end within {_TIMEOUT_S:g} s when it tried {group.name}"
    except OSError as error:
        return not_startable(perf, error)
    text = done.stderr.decode(errors="replace")
    counted = {line.event: line for line in map(parse_line, text.splitlines()) if line is not None}
    for event in group.events:
        line = counted.get(event.printed(group.name))
        if line is None:
            return why_it_ended(text, done.returncode, paranoia)
        if line.gap == NOT_SUPPORTED and group.together:
            return f"{Why.UNSUPPORTED.value}: {event.name} is not supported by this processor or virtual machine"
        if line.gap is not None and group.together:
            return f"{Why.UNSUPPORTED.value}: {event.name} is not counted together with the other events of its group"
    if all(counted[event.printed(group.name)].gap is not None for event in group.events):
        return f"{Why.UNSUPPORTED.value}: none of its events is supported by this processor or virtual machine"
    return None


@contextlib.contextmanager
def signals_reach_children() -> Iterator[None]:
    """Let the programs that this thread starts meanwhile hear the signals by which they are ended.

    A program inherits which signals its starter blocks, and the threads of a node block those that end it: perf would
    be deaf to SIGINT, and to whoever wants to end it by hand. Linux gives a signal meant for the whole process to the
    main thread first, so that the node loses none to this thread.
    """
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def not_startable(perf: str, error: OSError) -> str:
    """Say why perf could not be started."""
    if isinstance(error, FileNotFoundError):
        return (
            f"{Why.NOT_FOUND.value}: {perf} is not installed (Debian: linux-perf, Ubuntu: linux-tools-generic, "
            "Fedora: perf)"
        )
    if isinstance(error, PermissionError):
        return f"{Why.NO_PERMISSION.value}: {perf} may not be started"
    return f"{Why.FAILED.value}: {perf} cannot be started: {error.strerror or type(error).__name__}"


def why_it_ended(text: str, status: int, paranoia: str) -> str:
    """Turn what perf said at its end into one reason."""
    said = " ".join(" ".join(text.split("Usage:", maxsplit=1)[0].split()).split("Run 'perf list'")[0].split())
    lowered = said.lower()
    if any(word in lowered for word in _PERMISSION):
        return f"{Why.NO_PERMISSION.value}: {paranoia}; perf needs CAP_PERFMON for this"
    if (pmu := re.search(r"[Cc]annot find PMU `([^'`]+)'", said)) is not None:
        return f"{Why.UNSUPPORTED.value}: the kernel knows no counters called {pmu[1]} here (a virtual machine?)"
    if (event := re.search(r"The (\S+) event is not supported", said)) is not None:
        return f"{Why.UNSUPPORTED.value}: {event[1]} is not supported by this processor or virtual machine"
    if "not supported" in lowered or "syntax error" in lowered:
        return f"{Why.UNSUPPORTED.value}: perf says: {said[:160]}"
    if not said:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{Why.FAILED.value}: perf {how} and said nothing"
    return f"{Why.FAILED.value}: perf says: {said[:160]}"
