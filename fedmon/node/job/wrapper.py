"""Runs a command as if it were not measured: same streams, signals, terminal and exit code.

This process starts the command and a monitor process that measures it, forwards signals, and notes both ends. The
command goes on if the monitor dies.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from fedmon.common.errors import FedmonError, SettingsError
from fedmon.node.cgroup import OwnCgroup
from fedmon.node.job.processes import name_of

Kind = Literal["ready", "refused", "started", "not-started", "ended", "sampled", "signal"]

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a command that is not found, or cannot be run."""

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
)
"""Those that would end a process, and that users and schedulers send."""
_STOP_AND_GO = (signal.SIGTSTP, signal.SIGCONT)
_WATCHED = {*SIGNALS, *_STOP_AND_GO, signal.SIGCHLD}
_FROM_KERNEL = 0x80
_SIGNAL_ALL = {"slurmstepd", "pbs_mom"}
"""Daemons that signal every process of a job, so that the command has the signal already."""
_LAST_SAMPLE_S = 10.0
_LOOK_S = 0.1
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER. Source: Linux include/uapi/linux/prctl.h
_WAITID = {"x86_64": 247, "aarch64": 95, "riscv64": 95, "loongarch64": 95, "ppc64le": 272, "s390x": 281}
"""Numbers of the system call waitid. Source: Linux arch/*/kernel/syscalls/syscall.tbl, asm-generic/unistd.h."""
_NVCSW = 16
"""Place of ru_nvcsw in a struct rusage of longs, before ru_nivcsw. Source: getrusage(2)."""
_ERRNO = struct.Struct("=i")
_MESSAGE_BYTES = 65_536


class MonitorMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message between the process that runs the command and the one that measures it.

    ``ready`` or ``refused`` comes first, from the monitor; ``started`` (with ``pid``, the Unix time ``t``, and the
    cgroup's ``path`` and ``folders``) or ``not-started`` answers it. ``ended`` (with the exit ``code``) is answered
    by ``sampled``: until then the command stays a zombie, whose last counts can be read; ``switches`` are its voluntary
    and involuntary context switches. ``signal`` names a signal of this process.
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
    """One end of a pair of sockets that keep messages apart; safe in a signal handler, and for one listening thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.is_closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two ends that hear each other."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def tell(self, **message: Any) -> None:
        """Send one message; if the peer has ended it is dropped, and so is a signal that the peer does not take."""
        flags = socket.MSG_DONTWAIT if message["kind"] == "signal" else 0
        with contextlib.suppress(OSError):
            self._end.send(msgspec.json.encode(MonitorMessage(**message)), flags)

    def has_message(self, timeout_s: float | None) -> bool:
        """Wait for a message, or for the end of the peer; False after ``timeout_s``."""
        return bool(select.select([self._end], [], [], timeout_s)[0])

    def listen(self, timeout_s: float | None) -> MonitorMessage | None:
        """Return the next message; None after ``timeout_s``, or at the end of the peer (``is_closed``)."""
        if self.is_closed or not self.has_message(timeout_s):
            return None
        try:
            message = self._end.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # it ended before it had read everything
            message = b""
        self.is_closed = not message
        return msgspec.json.decode(message, type=MonitorMessage) if message else None

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class Supervisor:
    """Runs one command to its end; for the main thread. ``key`` marks its cgroup, or its environment if it has none."""

    def __init__(self, command: Sequence[str], key: str) -> None:
        self._command, self._key = command, key
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        # Our parent may have ignored this signal, and then the kernel keeps no exit code of a child.
        self._on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._child = self._monitor = 0
        self._code, self._began = 0, 0.0

    def run(self, monitor: Callable[[Channel], int]) -> int:
        """Return the command's exit code, for a signal 128 and its number.

        ``monitor(channel)`` runs in a second process, which ends with its result; it tells when it is ready, or raises
        FedmonError. Raises SettingsError, with no command started, if it cannot begin.
        """
        channel = self._start_monitor(monitor)
        # While the monitor begins.
        cgroup = OwnCgroup(f"fedmon-{self._key}-{os.getpid()}")
        if not cgroup.folders:
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans become our children, if the kernel lets us
        first = channel.listen(None)
        if first is None or first.kind != "ready":
            cgroup.remove()
            os.waitpid(self._monitor, 0)
            raise SettingsError(
                first.text if first is not None else "measuring could not begin: its process ended at once"
            )
        if problem := self._start(cgroup):
            cgroup.remove()
            self._code = NOT_FOUND if problem in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
            channel.tell(kind="not-started", text=os.strerror(problem), code=self._code)
            _complain(f"cannot run {self._command[0]}: {os.strerror(problem)}")
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
        atexit._clear()  # noqa: SLF001 - those of the process that was forked must not run twice
        try:
            ours.close()
            # Not in the terminal's foreground: keys typed there are for the command.
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a complaint on such a terminal must not stop it
            code = monitor(theirs)
            atexit._run_exitfuncs()  # noqa: SLF001 - matplotlib's removes its temporary folder
        except (FedmonError, OSError) as error:
            theirs.tell(kind="refused", text=str(error))
        except Exception as error:  # noqa: BLE001 - a mistake of ours, which nothing else would show
            theirs.tell(kind="refused", text=f"measuring could not begin: {type(error).__name__}: {error}")
        finally:
            os._exit(code)  # buffers of the process that was forked are not written twice

    def _start(self, cgroup: OwnCgroup) -> int:
        """Start the command; returns 0, or the number of the error that kept it from starting."""
        self._began = time.time()
        (read, write), (gate, opener) = os.pipe(), os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(opener)
            self._become_command(cgroup, gate, write)
        os.close(write)
        os.close(gate)
        # Not before the fork: what came between would be ours alone. What the child has, too, it gets once.
        while (came := signal.sigtimedwait(_WATCHED - {signal.SIGCHLD}, 0)) is not None:
            if came.si_signo not in _STOP_AND_GO:
                os.kill(self._child, came.si_signo)
        os.close(opener)
        with open(read, "rb") as pipe:
            while not select.select([pipe], [], [], _LOOK_S)[0]:
                os.kill(self._child, signal.SIGCONT)  # Ctrl-Z may have stopped it, which our parent cannot see
            answer = pipe.read()
        if answer:
            os.waitpid(self._child, 0)
            return int(_ERRNO.unpack(answer)[0])
        return 0

    def _become_command(self, cgroup: OwnCgroup, gate: int, answer: int) -> NoReturn:
        """Become the command once ``gate`` is closed, and take the signals of before; ``answer`` gets an error."""
        problem = errno.EINVAL
        try:
            cgroup.enter()
            if not cgroup.folders:
                os.environ.setdefault("FEDMON_JOB_ID", self._key)
            # Python ignores these two; a command expects their defaults, as from a shell.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, self._on_child)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # one that came early ends the command, too
            os.read(gate, 1)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            os.execvp(self._command[0], list(self._command))  # noqa: S606 - the command is the owner's own
        except OSError as error:
            problem = error.errno or errno.EINVAL
        finally:
            os.write(answer, _ERRNO.pack(problem))
            os._exit(NOT_FOUND)

    def _wait_for_command(self, channel: Channel) -> None:
        while not self._has_ended():
            self._take(signal.sigwaitinfo(_WATCHED), channel)
            self._reap_others()
        channel.tell(kind="ended", code=self._code, switches=_context_switches(self._child))
        channel.listen(_LAST_SAMPLE_S)
        os.waitpid(self._child, 0)
        self._child = 0

    def _wait_for_monitor(self, channel: Channel) -> None:
        """Wait until everything is written; Ctrl-C gives up the merge and the report."""
        while self._monitor:
            self._reap_others()
            if self._monitor and signal.sigwaitinfo(_WATCHED).si_signo == signal.SIGINT:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._monitor, signal.SIGINT)
        channel.close()

    def _take(self, came: signal.struct_siginfo, channel: Channel) -> None:
        """Forward a signal, unless its sender sent it to the command, too."""
        number = came.si_signo
        if number == signal.SIGCHLD:
            return
        if came.si_code < _FROM_KERNEL and name_of(came.si_pid) not in _SIGNAL_ALL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)
        if number == signal.SIGTSTP:
            # Our parent sees that we stop with the command.
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number != signal.SIGCONT:
            channel.tell(kind="signal", text=signal.Signals(number).name)

    def _reap_others(self) -> None:
        """Reap the monitor, and orphans that became our children."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._monitor = 0
                return
            if found is None or found.si_pid == self._child:
                return
            _, status = os.waitpid(found.si_pid, 0)
            if found.si_pid == self._monitor:
                self._monitor = 0
                if os.WIFSIGNALED(status):
                    _complain("the process that measured was killed; 'fedmon job merge' takes its recording")

    def _has_ended(self) -> bool:
        """Tell whether the command has ended, and note its exit code; it stays a zombie."""
        ended = os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            self._code = ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
        return ended is not None


def _complain(text: str) -> None:
    # Python has no stream for an output that was closed before it began.
    with contextlib.suppress(OSError):
        os.write(2, f"fedmon: {text}\n".encode(errors="backslashreplace"))


def _context_switches(pid: int) -> tuple[int, int] | None:
    """Return voluntary and involuntary switches of a zombie child, and of all children that it waited for.

    They are those of wait4(2), and the child stays a zombie. None on a machine with an unknown call number.
    Source: waitid(2), "C library/kernel differences": the system call fills a struct rusage, which libc does not pass.
    """
    number, usage = _WAITID.get(os.uname().machine), (ctypes.c_long * 32)()
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    done = number and ctypes.CDLL(None).syscall(number, int(os.P_PID), pid, None, flags, usage)
    return (usage[_NVCSW], usage[_NVCSW + 1]) if done == 0 else None
