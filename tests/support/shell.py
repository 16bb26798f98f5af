"""Shell verbs in processes of their own: to their end, or as long as a test lets them go on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.environment import plain_environment

FEDMON = [sys.executable, "-m", "fedmon"]


def fedmon(
    *arguments: str | Path, environ: Mapping[str, str] | None = None, timeout_s: float = 60.0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one shell verb to its end, without a terminal."""
    return subprocess.run(
        [*FEDMON, *arguments],
        env=plain_environment() if environ is None else dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        check=False,
    )


def begun(*words: str, environ: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Begin one shell verb, without a terminal; ``options`` say where its output goes, as those of Popen."""
    environ = plain_environment() if environ is None else dict(environ)
    return subprocess.Popen([*FEDMON, *words], env=environ, stdin=subprocess.DEVNULL, text=True, **options)


def limit_files(pid: int, size_bytes: int) -> None:
    """Let no file of a process grow beyond a size, as on a full disk."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


class Foreground:
    """A verb that runs until it is told to stop; ``facts`` is the document that it printed when it began."""

    def __init__(self, process: subprocess.Popen[str], facts: dict[str, Any]) -> None:
        self.process, self.facts = process, facts

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def foreground(
    *words: str | Path,
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = FEDMON,
    start_new_session: bool = False,
) -> Iterator[Foreground]:
    """Begin a verb with ``--json`` and wait for its document; at the end it is told to stop, and has to.

    Its environment is that of the test, if no other is given.
    """
    with subprocess.Popen(
        [*program, *map(str, words), "--json"],
        env=dict(os.environ if environ is None else environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    ) as process:
        try:
            running = Foreground(process, _document(process))
            yield running
            assert process.poll() is not None or running.stop() == 0
        finally:
            process.kill()


def _document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the first document, which has one line or several: those within are indented."""
    assert process.stdout is not None
    assert process.stderr is not None
    text = ""
    for line in process.stdout:
        text += line
        if line != "{\n" and line[0] != " ":
            break
    assert text, process.stderr.read()
    document: dict[str, Any] = json.loads(text)
    return document
