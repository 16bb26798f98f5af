"""One run of perf: its lines come through a pipe, SIGINT ends it, and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator

from fedmon.common.clock import Deadline
from fedmon.node.perf.probe import PLAIN, signals_reach_children

_QUIET_S = 0.1
_READ_BYTES = 65_536
_SAID_BYTES = 4_096


class PerfProcess:
    """A running perf; every method belongs to the thread that made it.

    Its output comes through a pipe whose only reader is this process. When this process dies, even by kill -9, the
    next line that perf prints ends it by SIGPIPE, within one interval. (A parent-death signal would need code between
    fork and exec, which is not safe beside threads, and the kernel drops it for a perf that has file capabilities.)
    ``patience_s`` is how long it may take to end. Raises OSError when perf cannot be started.
    """

    def __init__(self, command: Callable[[int], list[str]], *, patience_s: float = 2.0) -> None:
        self._patience_s = patience_s
        self._lines, writes = os.pipe()
        # What perf says beside its counts is kept in memory; a pipe that nobody reads could block it.
        self._said = os.memfd_create("fedmon-perf")
        self._rest = b""
        try:
            with signals_reach_children():
                self._process = subprocess.Popen(
                    command(writes),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._said,
                    pass_fds=(writes,),
                    env=PLAIN,
                )
        except BaseException:
            os.close(self._lines)
            os.close(self._said)
            raise
        finally:
            os.close(writes)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def lines(self, wake: int, *, silence_s: float) -> Iterator[str | None]:
        """Yield each line as it comes, and None when a burst of lines is over.

        Ends when perf has closed its output, when the descriptor ``wake`` can be read, or when perf printed nothing for
        ``silence_s``.
        """
        in_burst, silent = False, Deadline(silence_s)
        while True:
            wait_s = _QUIET_S if in_burst else silent.left_s()
            ready, _, _ = select.select([self._lines, wake], [], [], wait_s)
            if wake in ready:
                return
            if ready:
                chunk = os.read(self._lines, _READ_BYTES)
                if not chunk:
                    return
                yield from self._split(chunk)
                in_burst, silent = True, Deadline(silence_s)
            elif in_burst:
                yield None
                in_burst = False
            else:
                return

    def end(self) -> Iterator[str]:
        """End perf by SIGINT and yield what it still prints; SIGKILL follows when it has not ended in time."""
        deadline = Deadline(self._patience_s)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        while not deadline.passed():
            ready, _, _ = select.select([self._lines], [], [], deadline.left_s())
            chunk = os.read(self._lines, _READ_BYTES) if ready else b""
            if not chunk:
                break
            yield from self._split(chunk)
        self._reap(deadline.left_s())

    def close(self) -> tuple[int, str]:
        """Make sure that perf is gone, and return its status and what it said; afterwards this object is of no use."""
        self._reap(0.0 if self._process.poll() is None else None)
        size = os.fstat(self._said).st_size
        said = os.pread(self._said, _SAID_BYTES, max(0, size - _SAID_BYTES)).decode(errors="replace")
        os.close(self._lines)
        os.close(self._said)
        return self._process.returncode, said

    def wait(self, timeout_s: float) -> None:
        """Wait for a perf that has closed its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def _reap(self, timeout_s: float | None) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _split(self, chunk: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _READ_BYTES:
            self._rest = b""
        for line in lines:
            yield line.decode(errors="replace")
