"""The end of a run: a signal, the stop file, the time limit, the command's end, or that of all processes.

The start of a run tells an old stop file from a new one.
"""

from __future__ import annotations

import contextlib
import datetime
import glob
import logging
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from fedmon.node.collectors.job.process import read_birth
from fedmon.node.job.commands import CommandError, Runner, runner
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.layout import RECORDING_SUFFIX, JobFolder
from fedmon.node.job.processes import LAUNCHERS, name_of
from fedmon.node.job.wrapper import Channel

logger = logging.getLogger(__name__)

LOOK_S = 1.0
GRACE_S = 5.0
"""How long a command may take to end after a signal until its measuring is completed without it."""
IN_PROGRESS, FINISHED = "INPROGRESS", "FINISHED"
NEAR = "the time limit of the scheduler is near"
_CHECK_S = 0.2
_ASK_WITHIN_S = 2.0
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU", "SIGQUIT")
)
_ASKED_TO_END = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU")
_MARGIN_RATIO, _LEAST_MARGIN_S, _MOST_MARGIN_S = 0.05, 5.0, 60.0
_MOST_BYTES, _MOST_TRIES = 64, 5
_WAITERS = frozenset(name[:15] for name in LAUNCHERS | {"timeout", "time", "sudo", "strace", "uv", "xargs"})
"""Programs that start one other and wait for it: their caller takes them for that one."""
_MOST_WAITERS = 8
_TICKS = os.sysconf("SC_CLK_TCK")


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run ended; ``exit_code`` and context ``switches`` are those of a command that ended."""

    reason: str
    exit_code: int | None = None
    switches: tuple[int, int] | None = None


class RunEnd:
    """Waits for the end of a run: signals, or, with ``channel``, the messages of the process that runs the command.

    ``check`` returns a reason to end, or None. A context manager, for the main thread.
    """

    def __init__(self, *, channel: Channel | None, check: Callable[[], str | None]) -> None:
        self._channel, self._check = channel, check
        self._check_at = 0.0
        self._is_stopped = False
        self._signals: list[int] = []
        self._asked_at: float | None = None
        self._asked_by = ""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    def __enter__(self) -> Self:
        if self._channel is None:
            signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            for number in _SIGNALS:
                # Below nohup hang-ups are ignored, and the run is to go on.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, lambda number, _frame: self._signals.append(number))
        return self

    def __exit__(self, *_: object) -> None:
        """From now on only SIGINT ends the process: the recording is complete, and the rest may take its time."""
        if self._channel is None:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that waits was for the command, and is dropped
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a possible end, which `wait_for_end` will tell; the stop of commands and searches."""
        if self._came(timeout_s):
            return True
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + _CHECK_S
            self._is_stopped = self._check() is not None
        return self._is_stopped

    def _came(self, timeout_s: float) -> bool:
        if self._signals or (self._channel is not None and self._channel.has_more):
            return True
        return bool(select.select([self._descriptor], [], [], timeout_s)[0]) or bool(self._signals)

    @property
    def _descriptor(self) -> int:
        return self._wake_read if self._channel is None else self._channel.descriptor

    def wait_for_end(self, checks: Sequence[Callable[[], str | None]]) -> End:
        """Return why the run ends; ``checks`` and the own one are called about once a second."""
        look_at = time.monotonic()
        while True:
            if (end := self._heard()) is not None:
                return end
            left_s = look_at - time.monotonic()
            if left_s > 0:
                select.select([self._descriptor], [], [], left_s)
                continue
            look_at = time.monotonic() + LOOK_S
            reason = next((reason for check in (*checks, self._check) if (reason := check()) is not None), None)
            if reason is not None:
                return End(reason=reason)

    def _heard(self) -> End | None:
        if self._channel is not None:
            return self._told(self._channel)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        return End(reason=f"{signal.Signals(self._signals[0]).name} came") if self._signals else None

    def _told(self, channel: Channel) -> End | None:
        while (told := channel.listen(0.0)) is not None:
            if told.kind == "ended":
                return End(reason=_how(told.code), exit_code=told.code, switches=told.switches)
            if told.kind == "signal" and told.text in _ASKED_TO_END and self._asked_at is None:
                self._asked_at, self._asked_by = time.monotonic(), told.text
        if channel.is_closed:
            return End(reason="the process that ran the command was killed")
        if self._asked_at is not None and time.monotonic() - self._asked_at >= GRACE_S:
            return End(reason=f"{self._asked_by} came, and the command did not end within {GRACE_S:g} s")
        return None


class TimeLimit:
    """The latest end of a job, as far as the scheduler tells it; for one thread."""

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str], run: Runner) -> None:
        self._identity, self._environ, self._run = identity, environ, run
        self._ends_at: float | None = None
        self._length_s = identity.time_limit_s

    def ask(self, *, first_start: int | None) -> None:
        """Find it out: SLURM's variable from release 23 on, else squeue.

        For other schedulers it is the job's length after its first process on this host, which began ``first_start``
        clock ticks after the boot. Source: sbatch(1), SLURM_JOB_END_TIME.
        """
        self._ends_at = slurm_time(self._identity, self._environ, self._run, "END")
        if self._ends_at is None and self._length_s is not None and first_start is not None:
            self._ends_at = at_boot_ticks(first_start) + self._length_s
        if self._ends_at is None:
            return
        left_s = self._ends_at - time.time()
        if left_s <= 0:
            logger.warning("that the job ended %.0f s ago is not believed: this process runs", -left_s)
            self._ends_at = None
        elif self._length_s is None:
            self._length_s = left_s

    def check(self) -> str | None:
        """Return the reason to end when the limit is near, so that everything is written before; it may have moved."""
        if self._ends_at is None or time.time() < self._ends_at - margin_s(self._length_s or 0.0):
            return None
        moved_to = slurm_time(self._identity, {}, self._run, "END")
        if moved_to is None or moved_to <= self._ends_at:
            return NEAR
        self._ends_at = moved_to
        return None


def margin_s(time_limit_s: float) -> float:
    """Return how long before the scheduler's limit a run ends, so that everything can be written."""
    return min(_MOST_MARGIN_S, max(_LEAST_MARGIN_S, _MARGIN_RATIO * time_limit_s))


def slurm_time(identity: JobIdentity, environ: Mapping[str, str], run: Runner, which: str) -> float | None:
    """Return when a job of SLURM began (``START``) or ends at the latest (``END``), in Unix seconds.

    It is in a variable or told by squeue. Source: sbatch(1), squeue(1).
    """
    if identity.scheduler != "slurm":
        return None
    text = environ.get(f"SLURM_JOB_{which}_TIME", "")
    if text.isascii() and text.isdigit() and len(text) < 12:
        return float(text)
    if identity.raw_id is None:
        return None
    field = "%S" if which == "START" else "%e"
    try:
        argv = ["squeue", "--noheader", f"--jobs={identity.raw_id}", f"--format={field}"]
        said = run(argv, _ASK_WITHIN_S).checked()
        return datetime.datetime.fromisoformat(said.strip()).astimezone().timestamp()
    except (CommandError, ValueError) as error:
        logger.info("squeue does not tell the job's %s time: %s", which.lower(), error)
        return None


def at_boot_ticks(ticks: int) -> float:
    """Return the Unix time, in seconds, of a number of clock ticks after the boot."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / _TICKS


def _how(code: int) -> str:
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"the command was ended by {signal.Signals(code - 128).name}"
    return f"the command ended with exit code {code}"


# --- the stop file ---------------------------------------------------------------------------------------------------


class StopFile:
    """Stops a run when it says FINISHED, is empty or is gone; any other text does not.

    What cannot be read or written is logged once, and never ends a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_made = False
        self._problem = ""

    def begin(self, since: Callable[[], float]) -> None:
        """Write INPROGRESS, unless the run was stopped already.

        A stop from before ``since()``, in Unix seconds by the file server's clock, belongs to an earlier run and is
        replaced; a newer one is obeyed. It is called if a stop lies there.
        """
        for _ in range(_MOST_TRIES):
            try:
                descriptor = self._open()
            except FileNotFoundError:
                if self._write(IN_PROGRESS, is_new=True):
                    return
                continue  # another host just made it
            except OSError as error:
                self._log_problem(f"cannot be read: {error.strerror}")
                return
            try:
                text, changed = _content(descriptor)
                self._is_made = True
                if text == IN_PROGRESS or (_is_stop(text) and changed >= since()):
                    return
                self._write(IN_PROGRESS)
                # A script that had opened the old file wrote into that one.
                text, written = _content(descriptor)
                if written != changed and _is_stop(text):
                    self._write(FINISHED)
                return
            finally:
                os.close(descriptor)

    def check(self) -> str | None:
        """Return why to stop, None to go on."""
        if not self._is_made:
            return None
        try:
            descriptor = self._open()
            try:
                text, _ = _content(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return f"{self.path.name}: it was removed"
        except OSError as error:
            self._log_problem(f"cannot be read: {error.strerror}")
            return None
        if _is_stop(text):
            return f"{self.path.name}: {f'it says {FINISHED}' if text else 'it is empty'}"
        if text != IN_PROGRESS:
            self._log_problem(f"holds neither {IN_PROGRESS} nor {FINISHED}")
        return None

    def remove(self) -> None:
        """Remove it, after the run of all hosts."""
        with contextlib.suppress(OSError):
            if self._is_made:
                self.path.unlink()

    def _open(self) -> int:
        """Open it. Raises OSError, also for what is no file."""
        # A pipe of this name would hold up its reader.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(0, "it is no file")
        return descriptor

    def _write(self, text: str, *, is_new: bool = False) -> bool:
        """Write the file as a whole; False when there is one already and ``is_new`` asks for none."""
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            new.write_text(f"{text}\n")
            if is_new:
                try:
                    os.link(new, self.path)
                except FileExistsError:
                    return False
                except OSError:  # this file system has no links
                    new.replace(self.path)
            else:
                new.replace(self.path)
            self._is_made = True
        except OSError as error:
            self._log_problem(f"cannot be written: {error.strerror}")
        finally:
            with contextlib.suppress(OSError):
                new.unlink()
        return True

    def _log_problem(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("%s %s: it cannot stop the measuring as long as that is so", self.path, problem)
        self._problem = problem


def run_start(
    pid: int, folder: JobFolder, identity: JobIdentity, members: Membership, environ: Mapping[str, str]
) -> float:
    """Return when this run of the job began, in Unix seconds by the file server's clock.

    It is the earliest of three: when process ``pid`` was asked for; when another host of the same run began, for a host
    that comes late; and, if SLURM's job was never measured before, the job's own start, for a launcher that took longer
    than the job's work.
    """
    found = [asked_at(pid) - (members.clock_offset_s or 0.0)]
    if (began := members.others_began()) is not None:
        found.append(began)
    earlier = f"*/{folder.recordings.parent.name}/{glob.escape(folder.key)}/*{RECORDING_SUFFIX}"
    if identity.scheduler == "slurm" and not any(folder.save_dir.glob(earlier)):
        job_began = slurm_time(identity, environ, runner(environ), "START")
        found += [] if job_began is None else [job_began]
    return min(found)


def asked_at(pid: int) -> float:
    """Return when a process, or the launcher that waits for it, was forked, in Unix seconds; now if unknown.

    That is before Python read its modules, which can take long.
    """
    try:
        birth = read_birth(pid)
        for _ in range(_MOST_WAITERS):
            if name_of(birth.parent) not in _WAITERS:
                break
            birth = read_birth(birth.parent)
    except (OSError, ValueError, IndexError):
        return time.time()
    return at_boot_ticks(birth.start + 1)  # the kernel counts whole ticks


def _content(descriptor: int) -> tuple[str, float]:
    """Return the text of an open file, and when it was changed. Raises OSError."""
    text = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace").strip()
    return text, os.fstat(descriptor).st_mtime


def _is_stop(text: str) -> bool:
    return not text or text.upper() == FINISHED
