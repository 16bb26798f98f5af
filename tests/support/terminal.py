"""Shell verbs with a person at their terminal."""

from __future__ import annotations

import codecs
import os
import pty
import select
import subprocess
import termios
from collections.abc import Sequence
from typing import Self

from fedmon.common.clock import Deadline
from tests.support.environment import plain_environment
from tests.support.shell import FEDMON


class Terminal:
    """One verb at a terminal of 24 lines; a context manager. ``shown`` is what it showed since the last key."""

    def __init__(self, *words: str, term: str = "xterm", columns: int = 80, program: Sequence[str] = FEDMON) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        # In a session whose terminal it is, so that keys become signals, which a suite in the background may ignore.
        command = ["env", "--default-signal", "setsid", "--ctty", *program, *words]
        environ = plain_environment(TERM=term)
        self.process = subprocess.Popen(command, env=environ, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Close the terminal; may be called twice."""
        master, self.master = self.master, -1
        if master >= 0:
            os.close(master)

    def read_until(self, text: str) -> str:
        """Return what was shown once ``text`` is part of it, with what came at the same moment."""
        deadline = Deadline(60.0)
        while chunk := self._chunk(0.05 if text in self.shown else deadline.left_s()):
            self.shown += self._decoder.decode(chunk)
        assert text in self.shown, f"{text!r} never came:\n{self.shown}"
        return self.shown

    def press(self, key: str) -> None:
        """Press a key; what was shown before is forgotten."""
        self.shown = ""
        os.write(self.master, key.encode())

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self.master, f"{text}\n".encode())

    def end(self, timeout_s: float = 60.0) -> tuple[int, str]:
        """Return exit code and all that was shown, once the verb has ended."""
        deadline = Deadline(timeout_s)
        while chunk := self._chunk(deadline.left_s()):
            self.shown += self._decoder.decode(chunk)
        assert not deadline.passed(), self.shown
        return self.process.wait(timeout_s), self.shown.replace("\r\n", "\n")

    def _chunk(self, timeout_s: float) -> bytes:
        """Return what is shown next; nothing if that does not come in time, or once the verb has ended."""
        if timeout_s <= 0 or not select.select([self.master], [], [], timeout_s)[0]:
            return b""
        try:
            return os.read(self.master, 65_536)
        except OSError:  # Linux says EIO once nobody has the other end open
            return b""
