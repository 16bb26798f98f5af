"""Daemons which tests start: ended for certain, with what they left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.waiting import wait_until


def launch(argv: Sequence[str], *, output: IO[bytes], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a daemon that the kernel kills when we are killed."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *argv], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )


def end(process: subprocess.Popen[bytes], timeout_s: float = 10.0) -> None:
    """Ask a daemon to end, and kill it when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout_s)


def processes() -> Iterator[int]:
    """Yield the ids of all processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> str:
    """Return the words of a process with spaces between them; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment of a process."""
    raw = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in raw if b"=" in entry)


def with_environment(assignment: str) -> list[int]:
    """Return the processes, without ourselves, whose environment holds ``NAME=value``."""
    wanted = assignment.encode()
    found = []
    for pid in processes():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def kill_all(find: Callable[[], list[int]], what: str) -> None:
    """Kill what ``find`` returns until it returns nothing."""

    def none_left() -> bool:
        pids = find()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(none_left, timeout_s=10, what=f"the end of {what}")


def remove_cgroups(tops: list[Path]) -> None:
    """Remove the cgroup folders ``tops`` with all below them; what ran in them may still be ending."""

    def removed() -> bool:
        for top in tops:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        return not any(top.exists() for top in tops)

    wait_until(removed, timeout_s=10, what=f"the end of {[str(top) for top in tops]}")
