"""Daemons which tests start: ended for certain, with what they left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from tests.support.waiting import wait_until


def launch(argv: Sequence[str], *, output: IO[bytes], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a daemon that the kernel kills when we are killed."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *argv], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a daemon to end, and kill it when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60.0)


def command(pid: int) -> str:
    """Return the words of a process with spaces between them; empty when it is gone."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def with_environment(name: str, value: object) -> list[int]:
    """Return the processes, without ourselves, with this variable in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(name) == str(value):
                found.append(process.pid)
    return found


def kill_all(find: Callable[[], list[int]], what: str) -> None:
    """Kill what ``find`` returns until it returns nothing."""

    def none_left() -> bool:
        pids = find()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(none_left, what=f"the end of {what}")


def remove_cgroups(tops: list[Path]) -> None:
    """Remove the cgroup folders ``tops`` with all below them; what ran in them may still be ending."""

    def removed() -> bool:
        for top in tops:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        return not any(top.exists() for top in tops)

    wait_until(removed, what=f"the end of {[str(top) for top in tops]}")
