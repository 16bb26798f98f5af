"""Programs that go on for ever, and are killed by their test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fedmon.common.clock import Deadline


def lines_until_killed(module: str, *words: object, after_lines: int, after_s: float = 0.0) -> Iterator[str]:
    """Run a module of this folder; yield what it says until it is killed, that long after one of its lines."""
    command = [sys.executable, "-m", f"tests.common.store.{module}", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as child:
        assert child.stdout is not None
        for count, line in enumerate(child.stdout, start=1):
            yield line
            if count == after_lines:
                deadline = Deadline(after_s)
                while not deadline.passed():
                    pass  # a moment within what it does next, too short to wait for
                child.kill()
    assert child.returncode == -9
