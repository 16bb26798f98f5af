"""One look at the processes of a machine, to tell which of them are a job's."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from fedmon.node.collectors.job.cgroup import paths_of
from fedmon.node.collectors.job.files import read_file, read_whole
from fedmon.node.collectors.job.members import Births
from fedmon.node.collectors.job.process import Birth, birth_of

_MAX_DEPTH = 128
_COMMAND_BYTES = 4096


class Processes:
    """The programs that ran at one moment: no threads of the kernel, and nothing that has ended.

    Raises CollectorUnavailableError when they cannot be listed. What cannot be read of one of them is empty.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._bytes = os.fsencode(proc)
        everything = Births(proc=proc).everything()
        self.births = {birth.pid: birth for birth in everything if not (birth.is_kernel_thread or birth.is_zombie)}
        self._environments: dict[int, frozenset[bytes]] = {}

    def __contains__(self, pid: object) -> bool:
        return pid in self.births

    def environment(self, pid: int) -> frozenset[bytes]:
        """Return the ``NAME=value`` with which a process was started; only its user and root may read that."""
        if pid not in self._environments:
            self._environments[pid] = frozenset(self._read(pid, b"environ").split(b"\0"))
        return self._environments[pid]

    def command(self, pid: int) -> list[str]:
        """Return the words of its command line; daemons put a title there."""
        text = self._read(pid, b"cmdline", _COMMAND_BYTES)
        return text.decode(errors="replace").rstrip("\0").split("\0")

    def name(self, pid: int) -> str:
        """Return the name of its program, which the kernel cuts at 15 letters."""
        return self._read(pid, b"comm", 64).decode(errors="replace").rstrip("\n")

    def cgroups(self, pid: int) -> set[str]:
        """Return the paths of the cgroups that it is in."""
        return set(paths_of(self._proc, str(pid)).values()) - {"/"}

    def user(self, pid: int) -> int | None:
        """Return whose process it is."""
        try:
            return (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None

    def ancestors(self, pid: int) -> Iterator[int]:
        """Yield its parent, the parent of that, and so on, up to but not including process 1."""
        for _ in range(_MAX_DEPTH):
            birth = self.births.get(pid)
            if birth is None or birth.parent <= 1 or birth.parent not in self.births:
                return
            pid = birth.parent
            yield pid

    def trees(self, roots: Iterable[int]) -> set[int]:
        """Return processes with all that descend from them."""
        children: dict[int, list[int]] = {}
        for birth in self.births.values():
            children.setdefault(birth.parent, []).append(birth.pid)
        found: set[int] = set()
        queue = list(roots)
        while queue:
            pid = queue.pop()
            if pid not in found:
                found.add(pid)
                queue += children.get(pid, ())
        return found

    def still_there(self, pids: Collection[int]) -> list[Birth]:
        """Return who of them lives on and is the same process, oldest first."""
        found = []
        for pid in pids:
            before = self.births.get(pid)
            now = self._birth(pid)
            if before is not None and now is not None and now.start == before.start and not now.is_zombie:
                found.append(now)
        return sorted(found, key=lambda birth: (birth.start, birth.pid))

    def _birth(self, pid: int) -> Birth | None:
        try:
            return birth_of(pid, read_file(b"%s/%d/stat" % (self._bytes, pid), 1024))
        except (OSError, ValueError, IndexError):
            return None

    def _read(self, pid: int, name: bytes, size: int = 0) -> bytes:
        path = b"%s/%d/%s" % (self._bytes, pid, name)
        try:
            return read_file(path, size) if size else read_whole(path)
        except OSError:
            return b""
