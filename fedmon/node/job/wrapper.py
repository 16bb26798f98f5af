"""Runs a command as if nobody measured it: its streams, signals, terminal and exit code are its own.

This process starts the command and a monitor, which measures it, forwards signals, and notes both ends. The command
goes on whatever becomes of the monitor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.node.job.cgroup import OwnCgroup

Kind = Literal["ready", "refused", "started", "not-started", "ended", "sampled", "signal"]

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a command that is not there, or cannot be run."""
MARKER = "FEDMON_JOB_ID"

_FORWARDED = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
)
_WATCHED = {*_FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD}
_FROM_KERNEL = 0x80
_SIGNAL_ALL = {b"slurmstepd", b"pbs_mom"}
"""Who signals every process of a job by itself, so that the command has the signal already."""
_LAST_SAMPLE_S = 10.0
_LOOK_S = 0.1
_SUBREAPER = 36
_WAITID = {"x86_64": 247, "aarch64": 95, "riscv64": 95, "loongarch64": 95, "ppc64le": 272, "s390x": 281}
"""Numbers of the system call waitid. Source: Linux arch/*/kernel/syscalls/syscall.tbl, asm-generic/unistd.h."""
_NVCSW = 16
"""Place of ru_nvcsw in a struct rusage of longs, before ru_nivcsw. Source: getrusage(2)."""
_ERRNO = struct.Struct("=i")


class MonitorMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message between the process that runs the command and the one that measures it.

    ``ready`` or ``refused`` comes first, from the monitor; ``started`` (with ``pid``, the Unix time ``t``, and the
    cgroup's ``path`` and ``folders``) or ``not-started`` answers it. ``ended`` (with the exit ``code``) is answered
    by ``sampled``: until then the command stays a zombie, whose last counts can be read; ``switches`` are its voluntary
    and involuntary context switches. ``signal`` names one that came.
    """

    kind: Kind
    text: str = ""
    pid: int = 0
    code: int = 0
    t: float = 0.0
    path: str = ""
    folders: dict[str, str] = {}
    switches: tuple[int, int] | None = None


class Channel:
    """One end of both pipes; `tell` never waits for long and `listen` returns None when nothing came in time."""

    def __init__(self, read: int, write: int) -> None:
        self.descriptor, self._write = read, write
        self._rest = b""
        self.is_closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two ends that hear each other."""
        to_second, to_first = os.pipe(), os.pipe()
        return cls(to_first[0], to_second[1]), cls(to_second[0], to_first[1])

    def tell(self, **message: Any) -> None:
        """Send one message; a peer that is gone gets none."""
        with contextlib.suppress(OSError):
            os.write(self._write, msgspec.json.encode(MonitorMessage(**message)) + b"\n")

    def listen(self, timeout_s: float | None) -> MonitorMessage | None:
        """Return the next message; None when none came in time, or none will come any more (``is_closed``)."""
        while b"\n" not in self._rest:
            if self.is_closed or not select.select([self.descriptor], [], [], timeout_s)[0]:
                return None
            chunk = os.read(self.descriptor, 65_536)
            self.is_closed = not chunk
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return msgspec.json.decode(line, type=MonitorMessage)

    @property
    def has_more(self) -> bool:
        """Whether a message was read already and waits here, where no `select` sees it."""
        return b"\n" in self._rest

    def close(self) -> None:
        """Close this end."""
        os.close(self.descriptor)
        os.close(self._write)


class RefusedError(FedmonError):
    """The run could not begin; nothing was started."""

    exit_code = 2


def supervise(command: Sequence[str], *, key: str, monitor: Callable[[Channel], int]) -> int:
    """Run a command to its end and return its exit code, 128 and the number for a signal.

    ``monitor(channel)`` runs in a process of its own, which ends with what it returns. Raises RefusedError, with
    nothing started, when it cannot begin.
    """
    return _Supervisor(command, key).run(monitor)


class _Supervisor:
    def __init__(self, command: Sequence[str], key: str) -> None:
        self._command, self._key = command, key
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        # Who started us may have this ignored, and then the kernel would tell nobody how a child ended.
        self._on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._child = self._monitor = 0
        self._code, self._began = 0, 0.0
        self._is_reaped = False

    def run(self, monitor: Callable[[Channel], int]) -> int:
        channel = self._start_monitor(monitor)
        # While the monitor begins.
        cgroup = OwnCgroup(f"fedmon-{self._key}-{os.getpid()}")
        if not cgroup.folders:
            _become_subreaper()
        first = channel.listen(None)
        if first is None or first.kind != "ready":
            cgroup.remove()
            os.waitpid(self._monitor, 0)
            raise RefusedError(
                first.text if first is not None else "the measuring could not begin: its process ended at once"
            )
        problem = self._start(cgroup)
        if problem:
            cgroup.remove()
            channel.tell(kind="not-started", text=os.strerror(problem), code=_exit_code_of(problem))
            self._code = _exit_code_of(problem)
            sys.stderr.write(f"fedmon: cannot run {self._command[0]}: {os.strerror(problem)}\n")
        else:
            folders = {name: str(folder) for name, folder in cgroup.folders.items()}
            channel.tell(kind="started", pid=self._child, t=self._began, path=cgroup.path, folders=folders)
            self._wait_for_command(channel)
            cgroup.remove()
        self._wait_for_monitor(channel)
        return self._code

    def _start_monitor(self, monitor: Callable[[Channel], int]) -> Channel:
        ours, theirs = Channel.pair()
        self._monitor = os.fork()
        if self._monitor:
            theirs.close()
            return ours
        code = 1
        try:
            ours.close()
            # Not in the terminal's foreground: what is typed there is meant for the command.
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a complaint on such a terminal must not stop it
            code = monitor(theirs)
        finally:
            os._exit(code)  # neither buffers nor exit handlers of the process that was forked are run twice

    def _start(self, cgroup: OwnCgroup) -> int:
        """Start the command; returns 0, or the number of the error that kept it from starting."""
        self._began, early = time.time(), self._came_early()
        read, write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            self._become_command(cgroup, early, write)
        os.close(write)
        with open(read, "rb") as told:
            # Ctrl-Z may stop the child before it is the command, which our own starter is to see.
            while not select.select([told], [], [], _LOOK_S)[0]:
                if signal.sigtimedwait([signal.SIGTSTP], 0) is not None:
                    os.kill(os.getpid(), signal.SIGSTOP)
            answer = told.read()
        if answer:
            os.waitpid(self._child, 0)
            return int(_ERRNO.unpack(answer)[0])
        return 0

    def _came_early(self) -> list[int]:
        """Take the signals that came while there was no command."""
        found = []
        while (told := signal.sigtimedwait(_WATCHED - {signal.SIGCHLD}, 0)) is not None:
            if told.si_signo == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
            elif told.si_signo != signal.SIGCONT:
                found.append(told.si_signo)
        return found

    def _become_command(self, cgroup: OwnCgroup, early: Sequence[int], told: int) -> NoReturn:
        """Be the child: get the early signals, and become the command; ``told`` gets the error, and is closed then."""
        problem = errno.EINVAL
        try:
            cgroup.enter()
            if not cgroup.folders:
                os.environ.setdefault(MARKER, self._key)
            # Python ignores these two; a command expects them as they were when it is started by a shell.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, self._on_child)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # what comes before the command is there ends it, too
            for number in early:
                os.kill(os.getpid(), number)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            os.execvp(self._command[0], list(self._command))  # noqa: S606 - the command is the owner's own
        except OSError as error:
            problem = error.errno or errno.EINVAL
        finally:
            os.write(told, _ERRNO.pack(problem))
            os._exit(NOT_FOUND)

    def _wait_for_command(self, channel: Channel) -> None:
        while not self._has_ended():
            self._take(signal.sigwaitinfo(_WATCHED), channel)
            self._reap_others()
        channel.tell(kind="ended", code=self._code, switches=_context_switches(self._child))
        while not channel.is_closed and self._monitor:
            answer = channel.listen(_LAST_SAMPLE_S)
            if answer is None or answer.kind == "sampled":
                break
        os.waitpid(self._child, 0)
        self._is_reaped = True

    def _wait_for_monitor(self, channel: Channel) -> None:
        """Wait until everything is written; Ctrl-C gives up what is done with the recording afterwards."""
        while self._monitor:
            self._reap_others()
            if self._monitor and signal.sigwaitinfo(_WATCHED).si_signo == signal.SIGINT:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._monitor, signal.SIGINT)
        channel.close()

    def _take(self, told: signal.struct_siginfo, channel: Channel) -> None:
        """Forward a signal, unless the command got it from who sent it to us."""
        number = told.si_signo
        if number == signal.SIGCHLD:
            return
        if told.si_code < _FROM_KERNEL and _comm(told.si_pid) not in _SIGNAL_ALL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)
        if number == signal.SIGTSTP:
            # Whoever started us sees that we stand still as the command does.
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number != signal.SIGCONT:
            channel.tell(kind="signal", text=signal.Signals(number).name)

    def _reap_others(self) -> None:
        """Take note of the end of the measuring, and of orphans that became our children."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._monitor = 0
                return
            if found is None or (found.si_pid == self._child and not self._is_reaped):
                return
            os.waitpid(found.si_pid, 0)
            if found.si_pid == self._monitor:
                self._monitor = 0

    def _has_ended(self) -> bool:
        """Tell whether the command has ended, and with which code; it stays a zombie."""
        ended = os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            self._code = ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
        return ended is not None


def _context_switches(pid: int) -> tuple[int, int] | None:
    """Return voluntary and involuntary switches of a child that has ended, and of all that it waited for.

    They are those of wait4(2), and the child stays a zombie. None where this machine's call is not known.
    Source: waitid(2), "C library/kernel differences": the system call fills a struct rusage, which libc does not pass.
    """
    number = _WAITID.get(os.uname().machine)
    try:
        import ctypes

        usage = (ctypes.c_long * 32)()
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        done = number and ctypes.CDLL(None).syscall(number, int(os.P_PID), pid, None, flags, usage)
    except (ImportError, OSError):
        return None
    return (usage[_NVCSW], usage[_NVCSW + 1]) if done == 0 else None


def _exit_code_of(problem: int) -> int:
    return NOT_FOUND if problem in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


def _become_subreaper() -> None:
    """Become the parent of what the command leaves without one. Source: prctl(2), PR_SET_CHILD_SUBREAPER."""
    import ctypes

    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _comm(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().strip()
    except OSError:
        return b""
