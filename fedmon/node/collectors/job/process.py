"""One process of a job: read again and again, and never mistaken for another one that got its number."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedmon.node.collectors.base import why
from fedmon.node.collectors.files import PAGE_BYTES, TICKS_PER_S, read_file

USER, SYSTEM, MINOR, MAJOR, READ_CHARS, WRITTEN_CHARS, READS, WRITES, STORAGE_READ, STORAGE_WRITTEN = range(10)
"""Positions in ``Process.counts``: ticks, page faults, then the six of ``io``."""

REAPED = 4
"""How many of them the kernel keeps apart for children that were waited for; in ``io`` they are one with the own."""

NO_COUNTS = (0,) * 10
_UNREAD = b"\0"
"""A text that no file holds, so that the next reading is new."""

_FILE_BYTES = 1024
_FILES = (b"/schedstat", b"/io", b"/stat")
_RAN, _IO, _STAT = range(3)
_KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD. Source: Linux include/linux/sched.h."""


class ProcessGoneError(Exception):
    """The process has ended and was waited for, or its number belongs to another one now."""


class Birth(NamedTuple):
    """A process or zombie at one moment; ``start`` is in clock ticks since the boot.

    ``parent`` is the present one. ``cpu_s`` includes the CPU time of the children that it waited for.
    """

    pid: int
    parent: int
    group: int
    session: int
    start: int
    is_kernel_thread: bool = False
    is_zombie: bool = False
    cpu_s: float = 0.0
    threads: int = 0
    resident_bytes: int = 0


def stat_fields(text: bytes) -> list[bytes]:
    """Return the fields of ``stat`` from the state on; a name may hold spaces and brackets, and ends with the last.

    Raises ValueError if the text is something else. Source: Linux Documentation/filesystems/proc.rst, table 1-4.
    """
    return text[text.rindex(b") ") + 2 :].split(b" ", 22)


def read_birth(pid: int, proc: Path | bytes = b"/proc") -> Birth:
    """Return the identity of a process. Raises OSError, ValueError and IndexError."""
    return birth_of(pid, read_file(b"%s/%d/stat" % (os.fsencode(proc), pid), _FILE_BYTES))


def find_birth(pid: int, proc: Path | bytes = b"/proc") -> Birth | None:
    """Return the same, or None if no process has this number or it cannot be read."""
    try:
        return read_birth(pid, proc)
    except (OSError, ValueError, IndexError):
        return None


def births_of(pids: Iterable[int], proc: Path | bytes = b"/proc") -> list[Birth]:
    """Return the processes of these numbers, without those that are gone or cannot be read."""
    return [birth for pid in pids if (birth := find_birth(pid, proc)) is not None]


def all_pids(proc: Path | bytes = b"/proc") -> list[int]:
    """Return the numbers of all processes. Raises OSError."""
    return [int(name) for name in os.listdir(os.fsencode(proc)) if name.isdigit()]  # noqa: PTH208 - thousands of names


def birth_of(pid: int, text: bytes) -> Birth:
    """Return the identity of a process from its ``stat``. Raises ValueError and IndexError for a torn text."""
    fields = stat_fields(text)
    threads = int(fields[17])
    return Birth(
        pid,
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[19]),
        bool(int(fields[6]) & _KERNEL_THREAD),
        fields[0] in b"ZX" and threads <= 1,
        sum(map(int, fields[11:15])) / TICKS_PER_S,
        threads,
        int(fields[21].split()[0]) * PAGE_BYTES,
    )


def number_of(text: bytes, field: bytes) -> int:
    """Return the number of a line of ``status`` or the like; 0 without it, as for a process without memory."""
    start = text.find(field)
    return int(text[start + len(field) :].split(None, 1)[0]) if start >= 0 else 0


class Process:
    """One process, known by its number and its start.

    ``counts`` only grow while it lives; the first four and the six of ``io`` include the use of the children that it
    waited for. ``gauges`` are threads, virtual bytes and resident pages. Its files stay open while there are
    descriptors: an open one never reads another process. Belongs to one thread.
    """

    __slots__ = (
        *("_descriptors", "_fds", "_io_text", "_is_calm", "_ran", "_rests", "_text"),
        *("before", "counts", "folder", "gauges", "group", "is_zombie", "joined", "moved", "parent", "pid", "reaped"),
        *("session", "start", "unread_io"),
    )

    def __init__(self, proc: bytes, birth: Birth, descriptors: threading.Semaphore, *, tick: int) -> None:
        self.pid, self.parent, self.group, self.session, self.start = birth[:5]
        self.joined = tick
        self.folder = b"%s/%d" % (proc, birth.pid)
        self.is_zombie = False
        self.counts: tuple[int, ...] = NO_COUNTS
        self.reaped: tuple[int, ...] = (0,) * REAPED
        self.gauges: tuple[int, ...] = (0, 0, 0)
        self.before: tuple[tuple[int, ...], tuple[int, ...]] = (self.counts, self.reaped)
        self.moved = tick
        """The tick at which a count moved last."""
        self.unread_io = ""
        """The reason if ``io`` cannot be read; else empty."""
        self._descriptors = descriptors
        self._fds = [-1] * len(_FILES)
        self._text = self._io_text = _UNREAD
        self._ran = b""
        self._rests, self._is_calm = False, False

    def read(self, tick: int, *, thoroughly: bool = False) -> bool:
        """Read everything again and tell whether anything changed. Raises ProcessGoneError.

        A process of one thread that slept and was given no CPU since then has the same counts: one short file shows
        that. It is read all the same if ``thoroughly``, as is needed now and then for memory that the kernel took from
        it. ``io`` comes before ``stat``: by path, the start in ``stat`` then shows that it was this process's.
        """
        # For a process that works all the time the short file would only be one more to read.
        ran = self._read_ran() if self._is_calm and self._rests else b""
        if ran and ran == self._ran and not thoroughly:
            return False
        _, io_fd, stat_fd = self._fds
        try:  # the usual case, without four calls for each process
            io_text, text = os.pread(io_fd, _FILE_BYTES, 0), os.pread(stat_fd, _FILE_BYTES, 0)
        except OSError:
            io_text, text = self._read_io(), self._read_stat()
        is_same = text == self._text
        if is_same and io_text == self._io_text:
            self._ran, self._is_calm = ran, True
            return False
        self._ran, self._is_calm = b"", False
        counts, reaped = self.counts, self.reaped
        if not is_same and text:
            own, reaped = self._parse(text)
            self._text = text
        else:
            own = counts[:REAPED]
        if io_text:
            self.unread_io = ""
            counts = own + tuple(map(int, io_text.split(None, 12)[1:12:2]))
        else:
            counts = own + counts[REAPED:]
        self._io_text = io_text or _UNREAD
        if counts != self.counts or reaped != self.reaped:
            self.before = self.counts, self.reaped
            self.counts, self.reaped, self.moved = counts, reaped, tick
        return True

    def follow_parent(self) -> None:
        """Learn the parent that adopted it, without touching the counts."""
        with contextlib.suppress(ProcessGoneError, ValueError, IndexError):
            self.parent = int(stat_fields(self._read_stat())[1])

    def credit(self, tick: int) -> list[int]:
        """Return the growth of the counts at this tick that may have come from children that were waited for."""
        if self.moved != tick or self.joined == tick:
            return [0] * len(NO_COUNTS)
        counts, reaped = self.before
        return [
            now - then for now, then in zip(self.reaped + self.counts[REAPED:], reaped + counts[REAPED:], strict=True)
        ]

    def close(self) -> None:
        """Close the files; the next reading opens them again."""
        for index, descriptor in enumerate(self._fds):
            if descriptor >= 0:
                os.close(descriptor)
                self._descriptors.release()
                self._fds[index] = -1

    def _parse(self, text: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return counts and reaped ones from the text of ``stat``, and note the rest of it."""
        fields = stat_fields(text)
        numbers = list(map(int, fields[1:22]))
        if numbers[18] != self.start:
            raise ProcessGoneError
        self.parent, self.group, self.session = numbers[:3]
        minor, reaped_minor, major, reaped_major, user, system, reaped_user, reaped_system = numbers[6:14]
        threads = numbers[16]
        # The first thread of a process may have ended while others go on.
        self.is_zombie = fields[0] in b"ZX" and threads <= 1
        self.gauges = (0, 0, 0) if self.is_zombie else (threads, numbers[19], numbers[20])
        self._rests = threads <= 1 and fields[0] != b"R"
        return (
            (user + reaped_user, system + reaped_system, minor + reaped_minor, major + reaped_major),
            (reaped_user, reaped_system, reaped_minor, reaped_major),
        )

    def _read_ran(self) -> bytes:
        """Return a text that changes whenever a CPU is given to the process; empty if there is none."""
        try:
            text = self._raw(_RAN)
        except OSError:
            return b""
        return b"" if text.endswith(b" 0\n") else text  # a kernel that does not count writes zeros

    def _read_stat(self) -> bytes:
        try:
            return self._raw(_STAT)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise ProcessGoneError from None
        except OSError:
            return b""  # unreadable this once: nothing is known of it, not even that it is gone

    def _read_io(self) -> bytes:
        """Return ``io``; empty with the reason if it cannot be read. If the process is gone, its ``stat`` shows it."""
        try:
            return self._raw(_IO)
        except ProcessLookupError:
            raise ProcessGoneError from None
        except (FileNotFoundError, NotADirectoryError):  # a kernel that does not count
            self.unread_io = "unsupported"
        except OSError as error:
            self.unread_io = why(error).why.value
        return b""

    def _raw(self, file: int) -> bytes:
        descriptor = self._fds[file]
        if descriptor < 0:
            path = self.folder + _FILES[file]
            if not self._descriptors.acquire(blocking=False):
                return read_file(path, _FILE_BYTES)
            try:
                descriptor = self._fds[file] = os.open(path, os.O_RDONLY)
            except OSError:
                self._descriptors.release()
                raise
        return os.pread(descriptor, _FILE_BYTES, 0)


def descended(pids: Iterable[int], processes: Iterable[Birth]) -> list[Birth]:
    """Return the descendants of processes, without these, parents before their children."""
    by_parent: dict[int, list[Birth]] = {}
    for each in processes:
        by_parent.setdefault(each.parent, []).append(each)
    queue = list(pids)
    # A reused number can make a process its own ancestor.
    seen = set(queue)
    found: list[Birth] = []
    while queue:
        for child in by_parent.get(queue.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                queue.append(child.pid)
    return found
