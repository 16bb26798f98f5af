"""How a job ended, from what was seen of it: a named state and a sentence for people."""

from __future__ import annotations

import signal
from typing import NamedTuple

import msgspec

from fedmon.common.wire.runs import JobState, Level
from fedmon.node.runs.order import Limits

_SHELL_SIGNAL = 128
"""bubblewrap ends with this plus the number of the signal that ended the plan, as shells do."""
_NEARLY = 0.9
_NO_SPACE = ("[Errno 28]", "[Errno 122]", "[Errno 27]")
"""ENOSPC, EDQUOT, EFBIG. Source: Linux include/uapi/asm-generic/errno.h."""
_OS_ERRORS = ("OSError", "IOError")


class Verdict(NamedTuple):
    """The state, and a sentence that says what, how much against which limit, and what to do."""

    state: JobState
    reason: str


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan itself said that it failed with."""

    state: JobState
    reason: str
    type: str
    message: str
    traceback: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that tells how a job ended.

    ``cut`` is why the keeper ended it. ``memory_kills`` and ``refused_forks`` are what the cgroup counted. Where
    ``has_begun`` is False nothing of the plan ran, and ``setup`` is what the sandbox or the interpreter said.
    """

    level: Level
    limits: Limits
    cut: Verdict | None = None
    exit_code: int | None = None
    said: Said | None = None
    has_result: bool = False
    broken: str = ""
    invalid: str = ""
    unkept: str = ""
    memory_kills: int = 0
    refused_forks: int = 0
    cpu_s: float | None = None
    has_begun: bool = True
    setup: str = ""


def exit_code(status: int, level: Level) -> int:
    """Return an exit code from the status that waitpid gave, negative for a signal."""
    code = os_code = -(status & 0x7F) if status & 0x7F else status >> 8 & 0xFF
    if level == "bubblewrap" and _SHELL_SIGNAL < os_code <= _SHELL_SIGNAL + signal.SIGRTMAX:
        code = _SHELL_SIGNAL - os_code
    return code


def decide(seen: Seen) -> Verdict:
    """Return how the job ended."""
    if seen.cut is not None:
        refused = f"; {seen.refused_forks} times it was refused one more process" if seen.refused_forks else ""
        return Verdict(seen.cut.state, seen.cut.reason + refused)
    limit = _limit_behind(seen)
    if not seen.has_begun:
        return limit or Verdict(JobState.NOT_STARTED, _why_not_begun(seen))
    if seen.said is not None:
        return limit or _as_said(seen.said, seen.limits)
    if seen.has_result and seen.exit_code == 0 and not seen.broken:
        if seen.unkept:
            return Verdict(JobState.FAILED, f"the result cannot be kept on this node: {seen.unkept}")
        if seen.invalid:
            return Verdict(JobState.INVALID_RESULT, f"the result is not what a plan returns: {seen.invalid}")
        return Verdict(JobState.SUCCEEDED, "")
    return limit or Verdict(JobState.FAILED, _how(seen))


def cpu_reason(cpu_s: float, limits: Limits) -> str:
    """Return the sentence for too much CPU time."""
    return f"it used {cpu_s:.1f} s of CPU time, and {limits.cpu_s:g} s is its limit: {_more('max_cpu_s')}"


def wall_reason(limits: Limits) -> str:
    """Return the sentence for too long a time."""
    return f"it was not done after {limits.wall_s:g} s, its limit: {_more('max_wall_s')}"


def memory_reason(size_bytes: int | None, limits: Limits) -> str:
    """Return the sentence for too much memory; ``size_bytes`` is null where it was refused more before it had it."""
    had = "it wanted more memory than" if size_bytes is None else f"it had {size_bytes} bytes of memory, more than"
    return f"{had} its limit of {limits.memory_bytes} bytes: work on smaller pieces, {_more('max_memory_bytes')}"


def processes_reason(number: int | None, limits: Limits) -> str:
    """Return the sentence for too many processes and threads; ``number`` is null where one more was refused."""
    had = "it wanted more processes and threads than" if number is None else f"it had {number} processes and threads,"
    return (
        f"{had}{' ' if number is None else ' more than '}its limit of {limits.processes}: start fewer, "
        f"{_more('max_processes')}"
    )


def disk_reason(size_bytes: int | None, limits: Limits) -> str:
    """Return the sentence for too much in files; ``size_bytes`` is null where it was refused more."""
    had = "it wanted more in files than" if size_bytes is None else f"it had {size_bytes} bytes in files, more than"
    return f"{had} its limit of {limits.tmp_bytes} bytes: write less, {_more('max_tmp_bytes')}"


def output_reason(size_bytes: int | None, limits: Limits) -> str:
    """Return the sentence for too large a result; ``size_bytes`` is null where it was not packed to its end."""
    more = "more than" if size_bytes is None else f"{size_bytes} bytes, more than"
    return f"the result has {more} its limit of {limits.output_bytes} bytes: return less, {_more('max_output_bytes')}"


def _more(setting: str) -> str:
    """Return what to do about a limit that is too low; the setting is the highest that the node's owner grants."""
    return f"ask for more in limits, or have the owner raise [runs] {setting}"


def _limit_behind(seen: Seen) -> Verdict | None:
    """Return which limit a failure comes from, where it does."""
    said, limits = seen.said, seen.limits
    if seen.memory_kills or (said is not None and said.type.endswith("MemoryError")):
        return Verdict(JobState.MEMORY_LIMIT, memory_reason(None, limits))
    if said is None and seen.exit_code in (-signal.SIGXCPU, -signal.SIGKILL):
        is_unknown = seen.cpu_s is None and seen.exit_code == -signal.SIGXCPU
        if is_unknown or (seen.cpu_s is not None and seen.cpu_s >= limits.cpu_s * _NEARLY):
            return Verdict(JobState.CPU_LIMIT, cpu_reason(seen.cpu_s or limits.cpu_s, limits))
    if seen.refused_forks or (said is not None and _is_refused_fork(said)):
        return Verdict(JobState.PROCESS_LIMIT, processes_reason(None, limits))
    if said is not None and said.type.endswith(_OS_ERRORS) and said.message.startswith(_NO_SPACE):
        return Verdict(JobState.DISK_LIMIT, disk_reason(None, limits))
    return None


def _is_refused_fork(said: Said) -> bool:
    is_fork = said.type == "BlockingIOError" and said.message.startswith("[Errno 11]") and "fork" in said.traceback
    return is_fork or (said.type == "RuntimeError" and "can't start new thread" in said.message)


def _as_said(said: Said, limits: Limits) -> Verdict:
    """Return what the plan said of itself; where its words may leave in any case they are ours and not its own."""
    if said.state is JobState.OUTPUT_LIMIT:
        return Verdict(said.state, output_reason(None, limits))
    return Verdict(said.state, said.reason or "the plan failed and did not say why")


def _why_not_begun(seen: Seen) -> str:
    complaint = f": {seen.setup}" if seen.setup else ""
    code = seen.exit_code
    how = "" if code is None else f" by {_signal_name(-code)}" if code < 0 else f" with exit code {code}"
    return (
        f"the sandbox ({seen.level}) or its Python ended{how} before the plan could begin; the node's owner finds more "
        f"with `fedmon node runs show`{complaint}"
    )


def _how(seen: Seen) -> str:
    code = seen.exit_code
    after = ", after it had sent its result" if seen.has_result else " and returned nothing"
    if code is None:
        return "its end was not seen"
    if code < 0:
        return f"the plan was ended by {_signal_name(-code)}, which this node did not send{after}"
    if code:
        return f"the plan ended with exit code {code}{after}"
    if seen.broken:
        return seen.broken
    return "the plan ended without a result: run has to return, and the process must not be ended in it"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
