"""Which files of the product run, in this process and in those that it starts, between two marks.

As a program it runs a module under the trace: ``python -m tests.support.tracing FOLDER MODULE [WORD ...]``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import fedmon

PACKAGE = str(Path(fedmon.__file__).parent) + os.sep
_MARK, _FILES = "mark", "files"


class Trace:
    """What ran since the last mark, in all processes that write into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / _MARK).write_bytes(bytes(1))
        (folder / _FILES).touch()
        self._mark = 0

    def mark(self) -> None:
        """Begin anew."""
        self._mark += 1
        with (self.folder / _MARK).open("r+b") as file:
            file.write(bytes([self._mark]))

    def ran(self) -> list[tuple[int, str]]:
        """Return process and file for each that ran, in the order in which they did."""
        rows = (line.split(maxsplit=2) for line in (self.folder / _FILES).read_text().splitlines())
        return [(int(pid), file) for mark, pid, file in rows if int(mark) == self._mark]

    def settled(self, *, quiet_s: float) -> list[tuple[int, str]]:
        """Wait until something ran, and then nothing more for a while; return what did."""
        found: list[tuple[int, str]] = []
        # Python's own clock: ours would be traced, and taken for what is waited for.
        begun = quiet_since = time.monotonic()
        while not found or time.monotonic() - quiet_since < quiet_s:
            assert time.monotonic() - begun < 60.0, "nothing ran, or it never ended"
            threading.Event().wait(quiet_s / 10)
            if (now := self.ran()) != found:
                found, quiet_since = now, time.monotonic()
        return found

    def begin(self) -> None:
        """Trace this process from now on: the calling thread, those that begin later, and programs that they start."""
        hook = _Hook(self.folder)
        threading.setprofile(hook)
        sys.setprofile(hook)

    @staticmethod
    def end() -> None:
        """Trace no thread that begins from now on, nor the calling one."""
        threading.setprofile(None)
        sys.setprofile(None)


def traced(command: Sequence[str], folder: Path) -> list[str]:
    """Return a command that runs the same module of the product under the trace; others as they are."""
    words = list(command)
    with contextlib.suppress(ValueError):
        at = words.index("-m")
        if words[at + 1].startswith("fedmon."):
            words[at + 1 : at + 1] = ["tests.support.tracing", str(folder)]
    return words


class _Hook:
    """Writes down each file of the product that runs after a mark, once for each process."""

    def __init__(self, folder: Path) -> None:
        with (folder / _MARK).open("rb") as file:
            self._now = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        self._files = folder / _FILES
        self._mark = -1
        self._seen: set[str] = set()

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> None:
        if self._now[0] != self._mark:
            self._mark = self._now[0]
            self._seen = set()
        # A caller runs as well: so does the loop of a thread that waited, when what it waited in returns to it.
        self._note(frame)
        if frame.f_back is not None:
            self._note(frame.f_back)

    def _note(self, frame: FrameType) -> None:
        file = frame.f_code.co_filename
        if file in self._seen or frame.f_code.co_name == "<module>":
            return
        self._seen.add(file)
        if file.startswith(PACKAGE):
            # Opened each time: keepers close what they do not know, and a sandbox may not write at all.
            with contextlib.suppress(OSError), self._files.open("a") as log:
                log.write(f"{self._mark} {os.getpid()} {file.removeprefix(PACKAGE)}\n")


def main() -> None:
    """Run a module under the trace, and whatever module of the product it starts as a process."""
    folder, module = Path(sys.argv[1]), sys.argv[2]
    sys.argv[1:3] = []
    start = subprocess.Popen.__init__

    def start_traced(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        start(self, traced(args, folder) if isinstance(args, list) else args, *rest, **options)

    mock.patch.object(subprocess.Popen, "__init__", start_traced).start()
    hook = _Hook(folder)
    threading.setprofile(hook)
    sys.setprofile(hook)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
