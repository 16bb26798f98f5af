"""The shell verbs ``fedmon broker ...`` as a user types them, in processes of their own where that may matter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.shell_here import fedmon_here

FEDMON = [sys.executable, "-m", "fedmon", "broker"]


def fedmon_broker(*arguments: str | Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run one verb to its end."""
    if (arguments[0] in ("user", "config") or arguments[:2] == ("repository", "token")) and not typed:
        return fedmon_here("broker", *map(str, arguments), environ=os.environ)
    return subprocess.run(
        [*FEDMON, *map(str, arguments)], input=typed, capture_output=True, text=True, timeout=60, check=False
    )


def answer(*arguments: str | Path, typed: str = "") -> dict[str, Any]:
    """Run one verb with ``--json``, which must succeed, and return its document."""
    finished = fedmon_broker(*arguments, "--json", typed=typed)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    document: dict[str, Any] = json.loads(finished.stdout)
    return document


class Foreground:
    """A verb that runs until it is told to stop."""

    def __init__(self, process: subprocess.Popen[str], facts: dict[str, Any]) -> None:
        self.process, self.facts = process, facts

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def foreground(*arguments: str | Path, program: Sequence[str] = FEDMON) -> Iterator[Foreground]:
    """Start a verb with ``--json`` and wait for its document; at the end it is told to stop, and has to."""
    command = [*program, *map(str, arguments), "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            running = Foreground(process, _document(process))
            yield running
            assert process.poll() is not None or running.stop() == 0
        finally:
            process.kill()


def _document(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert process.stderr is not None
    assert line, process.stderr.read()
    document: dict[str, Any] = json.loads(line)
    return document
