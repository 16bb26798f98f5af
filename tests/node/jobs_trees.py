"""Processes as files laid out like /proc, for what cannot be brought about on purpose."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcTree:
    """A folder of processes; nothing in it changes but by `put` and `take`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(
        self,
        pid: int,
        *,
        parent: int = 1,
        start: int = 100,
        name: str = "job",
        state: str = "S",
        used: tuple[int, int] = (0, 0),
        reaped: tuple[int, int] = (0, 0),
        reaped_faults: int = 0,
        threads: int = 1,
        vsize: int = 4096,
        pages: int = 1,
        io: int | None = None,
        flags: int = 0,
        environ: bytes = b"",
        group: int | None = None,
        session: int | None = None,
        hwm_kb: int = 0,
        ran: int = 0,
    ) -> None:
        """Write a process.

        ``used`` and ``reaped`` are user and system ticks, ``io`` is the number of bytes written, ``ran`` how often it
        was given a CPU, where that is told.
        """
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        before = [parent, group or pid, session or pid, 0, -1, flags, 10, reaped_faults, 0, 0]
        after = [20, 0, threads, 0, start, vsize, pages, *[0] * 28]
        numbers = " ".join(map(str, [*before, *used, *reaped, *after]))
        (folder / "stat").write_text(f"{pid} ({name}) {state} {numbers}\n")
        if io is not None:
            (folder / "io").write_text(
                f"rchar: 7\nwchar: {io}\nsyscr: 1\nsyscw: 2\nread_bytes: 0\nwrite_bytes: {io}\n"
                "cancelled_write_bytes: 0\n"
            )
        if ran:
            (folder / "schedstat").write_text(f"{1000 * ran} 5 {ran}\n")
        (folder / "environ").write_bytes(environ)
        (folder / "status").write_text(
            f"Name:\t{name}\nTgid:\t{pid}\nPid:\t{pid}\nVmHWM:\t{hwm_kb} kB\nRssFile:\t8 kB\nRssShmem:\t4 kB\n"
            "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n"
        )
        (folder / "fd").mkdir(exist_ok=True)

    def take(self, pid: int) -> None:
        """Remove a process."""
        shutil.rmtree(self.root / str(pid))
