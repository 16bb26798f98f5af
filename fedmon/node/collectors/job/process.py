"""One process of a job: read again and again, and never mistaken for another one that got its number."""

from __future__ import annotations

import os
import resource
import threading
from typing import NamedTuple

from fedmon.node.collectors.sysfs import READ_FLAGS

USER, SYSTEM, MINOR, MAJOR, READ_CHARS, WRITTEN_CHARS, READS, WRITES, STORAGE_READ, STORAGE_WRITTEN = range(10)
"""Where each number lies in ``Process.counts``: ticks, page faults, then the six of ``io``."""

REAPED = 4
"""How many of them the kernel keeps apart for children that were waited for; in ``io`` they are one with the own."""

NO_COUNTS = (0,) * 10
_UNREAD = b"\0"
"""What no file says, so that the next reading is news."""

_STAT_BYTES = 1024
_IO_BYTES = 512
_KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD. Source: Linux include/linux/sched.h."""


class ProcessGoneError(Exception):
    """The process has ended and was waited for, or its number belongs to another one now."""


class Birth(NamedTuple):
    """Who a process is and where it comes from; ``start`` is in clock ticks since the boot.

    ``parent`` is the present one. ``ancestors`` are those who forked it, and who forked those, as far as it was told.
    """

    pid: int
    parent: int
    group: int
    session: int
    start: int
    is_kernel_thread: bool = False
    is_zombie: bool = False
    ancestors: tuple[int, ...] = ()


class Descriptors:
    """How many files all processes of all jobs may keep open together; reading by path costs twice as much.

    Safe from any thread.
    """

    def __init__(self, limit: int | None = None) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._left = soft // 2 if limit is None else limit
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one more, if there is one left."""
        with self._lock:
            if self._left <= 0:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """Return one that was taken."""
        with self._lock:
            self._left += 1


def stat_fields(text: bytes) -> list[bytes]:
    """Return the fields of ``stat`` from the state on; a name may hold spaces and brackets, and ends with the last.

    Raises ValueError when the text is something else. Source: Linux Documentation/filesystems/proc.rst, table 1-4.
    """
    fields = text[text.rindex(b") ") + 2 :].split(b" ", 22)
    if len(fields) < 22:
        raise ValueError("stat is cut off")
    return fields


def birth_of(pid: int, text: bytes) -> Birth:
    """Return who a process is from the text of its ``stat``. Raises ValueError when it cannot be understood."""
    fields = stat_fields(text)
    return Birth(
        pid,
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[19]),
        bool(int(fields[6]) & _KERNEL_THREAD),
        fields[0] in b"ZX" and int(fields[17]) <= 1,
    )


def read_file(path: bytes, size: int) -> bytes:
    """Return the beginning of a file. Raises OSError."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def read_whole(path: bytes) -> bytes:
    """Return a file that the kernel may hand out a page at a time. Raises OSError."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        text = chunk = os.read(descriptor, 65_536)
        while chunk:
            chunk = os.read(descriptor, 65_536)
            text += chunk
        return text
    finally:
        os.close(descriptor)


class Process:
    """One process, known by its number and its start.

    ``counts`` only grow while it lives; the first four and the six of ``io`` hold what its children had used that it
    waited for. ``gauges`` are threads, virtual bytes and resident pages. ``stat`` and ``io`` stay open while there
    are descriptors: an open one never reads another process. Belongs to one thread.
    """

    __slots__ = (
        "_descriptors",
        "_io_fd",
        "_io_text",
        "_stat_fd",
        "_text",
        "before",
        "counts",
        "folder",
        "gauges",
        "group",
        "is_zombie",
        "joined",
        "moved",
        "parent",
        "pid",
        "reaped",
        "session",
        "start",
        "unread_io",
        "unreadable",
    )  # fmt: skip

    def __init__(self, proc: bytes, pid: int, start: int, descriptors: Descriptors, *, tick: int) -> None:
        self.pid, self.start, self.joined = pid, start, tick
        self.folder = b"%s/%d" % (proc, pid)
        self.parent = self.group = self.session = 0
        self.is_zombie = False
        self.counts: tuple[int, ...] = NO_COUNTS
        self.reaped: tuple[int, ...] = (0,) * REAPED
        self.gauges: tuple[int, ...] = (0, 0, 0)
        self.before: tuple[tuple[int, ...], tuple[int, ...]] = (self.counts, self.reaped)
        self.moved = tick
        """The tick at which a count moved last."""
        self.unread_io = ""
        """Why ``io`` cannot be read; empty when it can."""
        self.unreadable = False
        self._descriptors = descriptors
        self._stat_fd = self._io_fd = -1
        self._text = self._io_text = _UNREAD

    def read(self, tick: int) -> bool:
        """Read everything again and tell whether anything changed. Raises ProcessGoneError.

        ``io`` comes first: by path, the start in ``stat`` then says that it was this process's.
        """
        if self._io_fd >= 0 <= self._stat_fd:  # without two calls for each process that did nothing
            try:
                io_text, text = os.pread(self._io_fd, _IO_BYTES, 0), os.pread(self._stat_fd, _STAT_BYTES, 0)
                self.unread_io = ""
            except OSError:
                io_text, text = self._read_io(), self._read_stat()
        else:
            io_text, text = self._read_io(), self._read_stat()
        if text == self._text and io_text == self._io_text:
            return False
        own, reaped, io = self.counts[:REAPED], self.reaped, self.counts[REAPED:]
        if text != self._text:
            try:
                own, reaped = self._understand(text)
                self.unreadable = False
            except (ValueError, IndexError):
                self.unreadable, self.gauges = True, (0, 0, 0)
        if not self.unread_io and io_text != self._io_text:
            try:
                io = _io_counts(io_text)
            except ValueError:
                self.unread_io = "failed"
        self._text = text
        # What was not understood is looked at again, for its reason.
        self._io_text = io_text if not self.unread_io else _UNREAD
        counts = own + io
        if counts != self.counts or reaped != self.reaped:
            self.before, self.moved = (self.counts, self.reaped), tick
            # Whatever a damaged file says, nothing that was counted is taken back.
            self.counts = tuple(map(max, counts, self.counts))
            self.reaped = tuple(map(max, reaped, self.reaped))
        return True

    def credit(self, tick: int) -> list[int]:
        """Return by how much the counts grew at this tick that may have come from children that were waited for."""
        if self.moved != tick or self.joined == tick:
            return [0] * len(NO_COUNTS)
        counts, reaped = self.before
        return [
            *(now - then for now, then in zip(self.reaped, reaped, strict=True)),
            *(now - then for now, then in zip(self.counts[REAPED:], counts[REAPED:], strict=True)),
        ]

    def close(self) -> None:
        """Close the files; they are read by path from now on."""
        for descriptor in (self._stat_fd, self._io_fd):
            if descriptor >= 0:
                os.close(descriptor)
                self._descriptors.give_back()
        self._stat_fd = self._io_fd = -1

    def _understand(self, text: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return counts and reaped ones from the text of ``stat``, and note the rest of it."""
        fields = stat_fields(text)
        if int(fields[19]) != self.start:
            raise ProcessGoneError
        minor, reaped_minor, major, reaped_major, user, system, reaped_user, reaped_system = map(int, fields[7:15])
        threads, virtual, resident = int(fields[17]), int(fields[20]), int(fields[21])
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        # The first thread of a process may have ended while others go on.
        self.is_zombie = fields[0] in b"ZX" and threads <= 1
        self.gauges = (0, 0, 0) if self.is_zombie else (threads, virtual, resident)
        return (
            (user + reaped_user, system + reaped_system, minor + reaped_minor, major + reaped_major),
            (reaped_user, reaped_system, reaped_minor, reaped_major),
        )

    def _read_stat(self) -> bytes:
        try:
            if self._stat_fd < 0:
                if not self._descriptors.take():
                    return read_file(self.folder + b"/stat", _STAT_BYTES)
                self._stat_fd = self._open(b"/stat")
            return os.pread(self._stat_fd, _STAT_BYTES, 0)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise ProcessGoneError from None
        except OSError:
            return b""  # unreadable this once: nothing is known of it, not even that it is gone

    def _read_io(self) -> bytes:
        try:
            if self._io_fd < 0:
                if not self._descriptors.take():
                    text = read_file(self.folder + b"/io", _IO_BYTES)
                    self.unread_io = ""
                    return text
                self._io_fd = self._open(b"/io")
            text = os.pread(self._io_fd, _IO_BYTES, 0)
        except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
            # Without a file the kernel does not count; whether the process is gone, its stat says.
            self.unread_io = "no permission" if isinstance(error, PermissionError) else "unsupported"
            return b""
        except ProcessLookupError:
            raise ProcessGoneError from None
        except OSError:
            self.unread_io = "failed"
            return b""
        self.unread_io = ""
        return text

    def _open(self, name: bytes) -> int:
        try:
            return os.open(self.folder + name, READ_FLAGS)
        except OSError:
            self._descriptors.give_back()
            raise


def _io_counts(text: bytes) -> tuple[int, ...]:
    words = text.split()
    if len(words) < 12 or words[0] != b"rchar:" or words[10] != b"write_bytes:":
        raise ValueError("io is not what the kernel writes")
    return tuple(map(int, words[1:12:2]))
