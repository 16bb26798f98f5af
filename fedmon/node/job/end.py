"""The end of a run: a signal, the stop file, the time limit, or the end of the command or of all processes."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.files import TargetExistsError, write_whole
from fedmon.node.collectors.files import TICKS_PER_S
from fedmon.node.collectors.job.process import find_birth
from fedmon.node.job.commands import CommandError, run
from fedmon.node.job.hosts import TICK_S, Membership
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.layout import RECORDING_SUFFIX, JobFolder
from fedmon.node.job.processes import LAUNCHERS, name_of
from fedmon.node.job.wrapper import SIGNALS, Channel

logger = logging.getLogger(__name__)

LOOK_S = 1.0
GRACE_S = 5.0
"""How long a command may take to end after a signal until its measuring is completed without it."""
IN_PROGRESS, FINISHED = "INPROGRESS", "FINISHED"
_IN_PROGRESS_LINE = f"{IN_PROGRESS}\n".encode()
NEAR = "the time limit of the scheduler is near"
_ASK_WITHIN_S = 5.0
_ASKED_TO_END = ("SIGTERM", "SIGXCPU")  # the others are keys and hang-ups, which many commands survive
_MARGIN_RATIO, _LEAST_MARGIN_S, _MOST_MARGIN_S = 0.05, 5.0, 60.0
_WAITERS = frozenset(name[:15] for name in LAUNCHERS | {"timeout", "time", "sudo", "strace", "uv", "xargs"})
"""Programs that start one other program and wait for it: their caller takes them for that one."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run ended; ``exit_code`` and context ``switches`` are those of a command that ended."""

    reason: str
    exit_code: int | None = None
    switches: tuple[int, int] | None = None


def catch_signals() -> Channel:
    """Return a channel that names each signal from now on that would end this process."""
    ours, theirs = Channel.pair()

    def note(number: int, _frame: object) -> None:
        ours.tell(kind="signal", text=signal.Signals(number).name)

    for number in SIGNALS:
        # Below nohup hang-ups are ignored, and the run goes on.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
    return theirs


def ignore_signals(*, of_command: bool) -> None:
    """Let only SIGINT end this process from now on: the recording is complete, and the rest may take its time."""
    for number in () if of_command else SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that waits was for the command, and is dropped
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)


class RunEnd:
    """Waits for the end of a run on a channel: that of `catch_signals`, or of the process that runs the command.

    ``check`` returns a reason to end, or None. For one thread.
    """

    def __init__(self, channel: Channel, *, has_command: bool, check: Callable[[], str | None]) -> None:
        self._channel, self._has_command, self._check = channel, has_command, check
        self._asked_at: float | None = None
        self._asked_by = ""

    def wait_for_end(self, look_after: Callable[[], End | None]) -> End:
        """Return why the run ends; ``look_after`` and the own check are called about once a second."""
        look_at = time.monotonic()
        while True:
            if (end := self._heard()) is not None:
                return end
            left_s = look_at - time.monotonic()
            if left_s > 0:
                self._channel.has_message(left_s)
                continue
            look_at = time.monotonic() + LOOK_S
            if (end := look_after()) is not None:
                return end
            if (reason := self._check()) is not None:
                return End(reason=reason)

    def _heard(self) -> End | None:
        while (message := self._channel.listen(0.0)) is not None:
            if message.kind == "ended":
                return End(reason=_how(message.code), exit_code=message.code, switches=message.switches)
            if message.kind == "signal" and not self._has_command:
                return End(reason=f"received {message.text}")
            if message.kind == "signal" and message.text in _ASKED_TO_END and self._asked_at is None:
                self._asked_at, self._asked_by = time.monotonic(), message.text
        if self._channel.is_closed:
            return End(reason="the process that ran the command was killed")
        if self._asked_at is not None and time.monotonic() - self._asked_at >= GRACE_S:
            return End(reason=f"received {self._asked_by}, and the command did not end within {GRACE_S:g} s")
        return None


def _how(code: int) -> str:
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"the command was ended by {signal.Signals(code - 128).name}"
    return f"the command ended with exit code {code}"


def latest_end(identity: JobIdentity, *, first_start: int | None) -> float:
    """Return when a run ends, in Unix seconds, so that everything is written before the scheduler's time limit.

    It is 5 % of the time that is left before the limit (5 to 60 s). The limit is told by SLURM from release 23 on;
    elsewhere it is the job's length after its first process on this host, which began ``first_start`` clock ticks
    after the boot. Infinite if it is not known.
    """
    limit = identity.ends_at
    if limit is None and identity.time_limit_s is not None and first_start is not None:
        limit = at_boot_ticks(first_start) + identity.time_limit_s
    if limit is None:
        return math.inf
    left_s = limit - time.time()
    if left_s <= 0:
        logger.warning("the time limit is ignored: it was %.0f s ago, and this process runs", -left_s)
        return math.inf
    return limit - min(_MOST_MARGIN_S, max(_LEAST_MARGIN_S, _MARGIN_RATIO * left_s))


def _slurm_start(identity: JobIdentity, environ: Mapping[str, str]) -> float | None:
    """Return when a job of SLURM began, in Unix seconds; a variable or squeue tells it.

    Source: sbatch(1), squeue(1).
    """
    if identity.scheduler != "slurm" or identity.raw_id is None:
        return None
    if identity.starts_at is not None:
        return identity.starts_at
    try:
        argv = ["squeue", "--noheader", f"--jobs={identity.raw_id}", "--format=%S"]
        said = run(argv, _ASK_WITHIN_S, environ=environ)
        return datetime.datetime.fromisoformat(said.strip()).astimezone().timestamp()
    except (CommandError, ValueError) as error:
        logger.info("squeue does not report the start of the job: %s", error)
        return None


def at_boot_ticks(ticks: int) -> float:
    """Return the Unix time, in seconds, of a number of clock ticks after the boot."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / TICKS_PER_S


# --- the stop file ---------------------------------------------------------------------------------------------------


class StopFile:
    """Stops a run if it says FINISHED, is empty or was removed; any other text does not.

    A file that cannot be read or written is logged once, and never ends a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_made = self._is_told = False

    def begin(self, since: Callable[[], float]) -> None:
        """Write INPROGRESS, unless the run was stopped already.

        A stop from before ``since()``, in Unix seconds by the file server's clock, belongs to an earlier run and is
        replaced; a newer one is obeyed. ``since`` is called only if there is a file.
        """
        try:
            try:
                write_whole(self.path, _IN_PROGRESS_LINE, only_new=True)
            except TargetExistsError:
                began = since()
                if not self._is_meant(began):
                    write_whole(self.path, _IN_PROGRESS_LINE)
            self._is_made = True
        except (OSError, StorageError) as error:
            self._log_problem(error)

    def _is_meant(self, began: float) -> bool:
        """Tell whether the file is of a run that began then. Raises OSError."""
        try:
            text, changed = self._content()
        except FileNotFoundError:  # another run removed it meanwhile
            return False
        return text == IN_PROGRESS or (_is_stop(text) and changed + TICK_S >= began)

    def check(self) -> str | None:
        """Return why to stop, None to continue."""
        if not self._is_made:
            return None
        try:
            text, _ = self._content()
        except FileNotFoundError:
            return f"{self.path.name}: it was removed"
        except OSError as error:
            self._log_problem(error)
            return None
        if _is_stop(text):
            return f"{self.path.name}: {f'it says {FINISHED}' if text else 'it is empty'}"
        if text != IN_PROGRESS:
            self._log_problem(f"it says neither {IN_PROGRESS} nor {FINISHED}")
        return None

    def remove(self) -> None:
        """Remove it, after the run of all hosts."""
        if self._is_made:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _content(self) -> tuple[str, float]:
        """Return its text, and when it was changed. Raises OSError."""
        return self.path.read_text(errors="replace").strip(), self.path.stat().st_mtime

    def _log_problem(self, problem: Exception | str) -> None:
        if not self._is_told:
            logger.warning("%s cannot stop the measuring: %s", self.path, problem)
        self._is_told = True


def run_start(
    pid: int, folder: JobFolder, identity: JobIdentity, members: Membership, environ: Mapping[str, str]
) -> float:
    """Return when this run of the job began, in Unix seconds by the file server's clock.

    It is the earliest of three: when process ``pid`` was asked for; when another host of the same run began, for a host
    that comes late; and, if SLURM's job was never measured before, the job's own start, for a launcher that took longer
    than the job's work. Raises StorageError.
    """
    found = [asked_at(pid) - members.clock_offset_s, members.others_began()]
    if not any(folder.save_dir.glob(f"*/{folder.recordings.parent.name}/{folder.key}/*{RECORDING_SUFFIX}")):
        found.append(_slurm_start(identity, environ))
    return min(at for at in found if at is not None)


def asked_at(pid: int) -> float:
    """Return when a process, or the launcher that waits for it, was forked, in Unix seconds; now if unknown.

    That is before Python read its modules, which can take long.
    """
    birth = find_birth(pid)
    while birth is not None and name_of(birth.parent) in _WAITERS:
        birth = find_birth(birth.parent)
    return time.time() if birth is None else at_boot_ticks(birth.start + 1)  # the kernel counts whole ticks


def _is_stop(text: str) -> bool:
    return not text or text.upper() == FINISHED
