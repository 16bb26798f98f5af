"""A child process that never outlives the process that started it, even when that one is killed."""

from __future__ import annotations

import contextlib
import pathlib
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, cast

from fedmon.broker.errors import BrokerStartError
from fedmon.common.clock import Deadline

_KEEPER = pathlib.Path(__file__).resolve().with_name("keeper.py")
_START_S = 15.0


class KeptProcess:
    """Start a command under a keeper, in ``folder``; all methods may be called from any thread, one at a time.

    What the command writes to standard error is appended to ``output``.
    Raises BrokerStartError when the command cannot be run.
    """

    def __init__(self, command: Sequence[str], *, folder: pathlib.Path, output: pathlib.Path) -> None:
        with output.open("ab") as stream:
            # -I -S: the keeper needs the standard library only, and no site or environment may change it.
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                cwd=folder,
                start_new_session=True,
            )
        # Always there with PIPE, which the type does not know.
        self._orders = cast("IO[bytes]", self._keeper.stdin)
        self._words = cast("IO[bytes]", self._keeper.stdout)
        try:
            self.pid = self._read_pid(command[0])
        except BaseException:
            self.end(timeout_s=0.0)
            raise

    def _read_pid(self, program: str) -> int:
        ready, _, _ = select.select([self._words], [], [], _START_S)
        line = self._words.readline().decode(errors="replace").strip() if ready else ""
        word, _, rest = line.partition(" ")
        if word != "pid":
            raise BrokerStartError(f"cannot run {program}: {rest or 'its keeper did not answer'}")
        return int(rest)

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._keeper.poll() is None

    def wait(self, timeout_s: float | None) -> int | None:
        """Wait for the end of the process; returns its exit code, or None when the time is over."""
        try:
            return self._keeper.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def hang_up(self) -> None:
        """Send SIGHUP to the process."""
        self._order(b"H")

    def kill(self) -> None:
        """Send SIGKILL to the process and wait for its end."""
        self._order(b"K")
        self._close(5.0)

    def end(self, *, timeout_s: float) -> None:
        """Ask the process to end, kill it when it has not ended in time, and wait for its end."""
        deadline = Deadline(timeout_s)
        self._order(b"T")
        if self.wait(deadline.left_s()) is None:
            self._order(b"K")
        self._close(5.0)

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._orders.write(order)
            self._orders.flush()

    def _close(self, timeout_s: float) -> None:
        for pipe in (self._orders, self._words):
            with contextlib.suppress(OSError):
                pipe.close()
        if self.wait(timeout_s) is None:
            self._keeper.kill()
            self._keeper.wait()
