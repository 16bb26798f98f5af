"""A child process that ends when the process that started it ends, even if that one is killed.

Run as a script, this file is the keeper: the parent of one child. It imports nothing of ours, to start in milliseconds.
Its arguments are the open files that the child may have, and the child's command line. It prints ``pid NUMBER``, or
``error ERRNO`` if the command cannot be run. Each byte on its standard input is the number of a signal for the child.
It sends SIGTERM, and SIGKILL three seconds later, when its standard input ends, its parent changes, or it gets SIGTERM.
It exits with the child's code, or 128 plus the signal that ended the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, cast

_GRACE_S = 3.0
_PARENT_CHECK_S = 1.0
_KILLED_WITHIN_S = 5.0
_PR_SET_PDEATHSIG = 1


class ChildProcess:
    """A command that runs in ``folder`` under a keeper; all that it prints is appended to the file ``output``.

    It may have ``open_files``, as far as the system allows, where that is more than its usual limit. Methods may be
    called from any thread, one at a time. Raises OSError if the command cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: str | os.PathLike[str],
        output: str | os.PathLike[str],
        open_files: int = 0,
    ) -> None:
        with open(output, "ab") as log:
            # -I -S: no environment and no site changes what the keeper does.
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(open_files), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                cwd=folder,
                start_new_session=True,
            )
        self._orders = cast("IO[bytes]", self._keeper.stdin)
        with cast("IO[bytes]", self._keeper.stdout) as said:
            word, _, number = said.read().decode().partition(" ")
        if word != "pid":
            self._reap()
            code = int(number or errno.ECHILD)
            raise OSError(code, os.strerror(code), command[0])
        self.pid = int(number)

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._keeper.poll() is None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end of the process; return its exit code, or None after ``timeout_s``."""
        try:
            return self._keeper.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; do nothing if it has ended."""
        with contextlib.suppress(OSError, ValueError):
            self._orders.write(bytes([number]))

    def end(self, *, timeout_s: float) -> None:
        """Send SIGTERM to the process, SIGKILL after ``timeout_s``, and wait for its end."""
        self.send(signal.SIGTERM)
        if self.wait(timeout_s) is None:
            self.send(signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        if self.wait(_KILLED_WITHIN_S) is None:
            self._keeper.kill()
            self._keeper.wait()
        self._orders.close()


def _keep(open_files: int, command: Sequence[str]) -> int:
    """Run the command as the keeper, and return its exit code."""
    parent = os.getppid()
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    stops: list[int] = []
    # Signals that our parent has blocked would stay blocked in the child.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Handled, not ignored: what is ignored here would be ignored by the child, too.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.append(number))
    _allow(open_files)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=_die_with_parent)  # noqa: PLW1509 - this process has one thread
    except OSError as error:
        os.write(1, b"error %d" % (error.errno or 0))
        return 127
    os.write(1, b"pid %d" % child.pid)
    os.close(1)
    while child.poll() is None:
        readable, _, _ = select.select([0, woken], [], [], _PARENT_CHECK_S)
        if woken in readable:
            os.read(woken, 4096)
        order = os.read(0, 1) if 0 in readable else None
        if order == b"" or stops or os.getppid() != parent:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
            child.kill()
            child.wait()
        elif order:
            child.send_signal(order[0])
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _allow(open_files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = open_files if hard == resource.RLIM_INFINITY else min(hard, open_files)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _die_with_parent() -> None:
    """Have the kernel kill the child when the keeper is killed; runs in the child, before its program starts.

    Source: prctl(2), PR_SET_PDEATHSIG; Linux only, elsewhere the end of standard input alone does it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(_keep(int(sys.argv[1]), sys.argv[2:]))
