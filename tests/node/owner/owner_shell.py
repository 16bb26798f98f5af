"""The owner's shell: verbs in processes of their own or in that of the test, with a terminal if a test asks for one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedmon.common.clock import Deadline
from tests.support.node_process import fedmon, plain_environment
from tests.support.shell_here import document, fedmon_here

Ran = subprocess.CompletedProcess[str]


def node(folder: Path, *words: str, environ: Mapping[str, str] | None = None) -> Ran:
    """Run `fedmon node ...` on a folder, inside this process where that makes no difference."""
    # The one becomes the node, the other leaves its own process out when it looks for those of a job.
    run = fedmon if words[0] == "start" or (words[0] == "job" and "--pid" not in words) else fedmon_here
    return run("node", *words, "--dir", str(folder), environ=plain_environment(**(environ or {})))


def told(folder: Path, *words: str, code: int = 0, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a verb with --json and return its one document."""
    found: dict[str, Any] = document(node(folder, *words, "--json", environ=environ), code=code)
    return found


def refused(folder: Path, *words: str, code: int, environ: Mapping[str, str] | None = None) -> str:
    """Run a verb that must fail with ``code``; return the one line that it says on standard error."""
    ran = node(folder, *words, environ=environ)
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stdout + ran.stderr
    assert ran.stderr.startswith("fedmon: ")
    assert ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr


class Terminal:
    """A verb with a person at its terminal, 80 columns wide."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedmon", "node", *words],
            env=plain_environment(TERM="xterm", COLUMNS="80"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def read_until(self, text: str) -> str:
        """Return what was shown once ``text`` is part of it."""
        deadline = Deadline(60.0)
        while text not in self.shown:
            assert select.select([self._master], [], [], deadline.left_s())[0], f"{text!r} never came:\n{self.shown}"
            self.shown += self._chunk()
        return self.shown

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._master, f"{text}\n".encode())

    def end(self, timeout_s: float = 60.0) -> tuple[int, str]:
        """Return exit code and all that was shown, once the verb has ended."""
        deadline = Deadline(timeout_s)
        while chunk := self._chunk():
            self.shown += chunk
            assert not deadline.passed(), self.shown
        return self._process.wait(timeout_s), self.shown.replace("\r\n", "\n")

    def _chunk(self) -> str:
        try:
            return os.read(self._master, 65_536).decode(errors="replace")
        except OSError:  # Linux says EIO once nobody has the other end open
            return ""
