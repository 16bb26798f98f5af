"""One process of a job: read again and again, and never mistaken for another one that got its number."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from fedmon.node.collectors.files import READ_FLAGS, Descriptors, read_file

USER, SYSTEM, MINOR, MAJOR, READ_CHARS, WRITTEN_CHARS, READS, WRITES, STORAGE_READ, STORAGE_WRITTEN = range(10)
"""Where each number lies in ``Process.counts``: ticks, page faults, then the six of ``io``."""

REAPED = 4
"""How many of them the kernel keeps apart for children that were waited for; in ``io`` they are one with the own."""

NO_COUNTS = (0,) * 10
_UNREAD = b"\0"
"""What no file says, so that the next reading is news."""

_FILE_BYTES = 1024
_FILES = (b"/schedstat", b"/io", b"/stat")
_RAN, _IO, _STAT = range(3)
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


def stat_fields(text: bytes) -> list[bytes]:
    """Return the fields of ``stat`` from the state on; a name may hold spaces and brackets, and ends with the last.

    Raises ValueError when the text is something else. Source: Linux Documentation/filesystems/proc.rst, table 1-4.
    """
    fields = text[text.rindex(b") ") + 2 :].split(b" ", 22)
    if len(fields) < 22:
        raise ValueError("stat is cut off")
    return fields


def read_birth(pid: int, proc: Path | bytes = b"/proc") -> Birth:
    """Return who a process is. Raises OSError, ValueError and IndexError."""
    return birth_of(pid, read_file(b"%s/%d/stat" % (os.fsencode(proc), pid), _FILE_BYTES))


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


class Process:
    """One process, known by its number and its start.

    ``counts`` only grow while it lives; the first four and the six of ``io`` hold what its children had used that it
    waited for. ``gauges`` are threads, virtual bytes and resident pages. Its files stay open while there are
    descriptors: an open one never reads another process. Belongs to one thread.
    """

    __slots__ = (
        *("_descriptors", "_fds", "_io_text", "_is_calm", "_ran", "_rests", "_tells_ran", "_text"),
        *("before", "counts", "folder", "gauges", "group", "is_zombie", "joined", "moved", "parent", "pid", "reaped"),
        *("session", "start", "unread_io", "unreadable"),
    )

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
        self._fds = [-1] * len(_FILES)
        self._text = self._io_text = _UNREAD
        self._ran = b""
        self._rests, self._is_calm, self._tells_ran = False, False, True

    def read(self, tick: int, *, thoroughly: bool = False) -> bool:
        """Read everything again and tell whether anything changed. Raises ProcessGoneError.

        A process of one thread that slept and was not given a CPU since then has the same counts: one short file says
        so, unless it is read ``thoroughly``, as is needed now and then for memory that the kernel took from it. ``io``
        comes before ``stat``: by path, the start in ``stat`` then says that it was this process's.
        """
        # Of one that works all the time the short file would only be one more to read.
        ran = self._read_ran() if self._is_calm and self._rests and self._tells_ran else b""
        if ran and ran == self._ran and not thoroughly:
            return False
        self._ran, self._is_calm = b"", False
        _, io_fd, stat_fd = self._fds
        if io_fd >= 0 <= stat_fd:  # the usual case, without four calls for each process
            try:
                io_text, text = os.pread(io_fd, _FILE_BYTES, 0), os.pread(stat_fd, _FILE_BYTES, 0)
                self.unread_io = ""
            except OSError:
                io_text, text = self._read_io(), self._read_stat()
        else:
            io_text, text = self._read_io(), self._read_stat()
        if text == self._text and io_text == self._io_text:
            self._ran, self._is_calm = ran, True
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
            self._move(counts, reaped, tick)
        return True

    def _move(self, counts: tuple[int, ...], reaped: tuple[int, ...], tick: int) -> None:
        before = self.before = (self.counts, self.reaped)
        self.counts, self.reaped, self.moved = counts, reaped, tick
        if True in map(operator.lt, counts, before[0]) or True in map(operator.lt, reaped, before[1]):
            # Whatever a damaged file says, nothing that was counted is taken back.
            self.counts, self.reaped = tuple(map(max, counts, before[0])), tuple(map(max, reaped, before[1]))

    def follow_parent(self) -> None:
        """Learn who adopted it, without touching the counts."""
        with contextlib.suppress(ProcessGoneError, ValueError, IndexError):
            self.parent = int(stat_fields(self._read_stat())[1])

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
        """Close the files; the next reading opens them again."""
        for index, descriptor in enumerate(self._fds):
            if descriptor >= 0:
                os.close(descriptor)
                self._descriptors.give_back()
                self._fds[index] = -1

    def _understand(self, text: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
        """Return what changes whenever a CPU is given to the process; empty when that is not told."""
        try:
            text = self._raw(_RAN)
        except FileNotFoundError:
            self._tells_ran = False  # or the process is gone, as its stat will say
            return b""
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
        try:
            text = self._raw(_IO)
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

    def _raw(self, file: int) -> bytes:
        descriptor = self._fds[file]
        if descriptor < 0:
            path = self.folder + _FILES[file]
            if not self._descriptors.take():
                return read_file(path, _FILE_BYTES)
            try:
                descriptor = self._fds[file] = os.open(path, READ_FLAGS)
            except OSError:
                self._descriptors.give_back()
                raise
        return os.pread(descriptor, _FILE_BYTES, 0)


def _io_counts(text: bytes) -> tuple[int, ...]:
    words = text.split(None, 12)
    if len(words) < 12 or words[0] != b"rchar:" or words[10] != b"write_bytes:":
        raise ValueError("io is not what the kernel writes")
    return tuple(map(int, words[1:12:2]))


class _Born(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def parent(self) -> int: ...


BornT = TypeVar("BornT", bound=_Born)


def descended(pids: Iterable[int], processes: Iterable[BornT]) -> list[BornT]:
    """Return those who descend from processes by their numbers, these not, parents before their children."""
    by_parent: dict[int, list[BornT]] = {}
    for each in processes:
        by_parent.setdefault(each.parent, []).append(each)
    queue = list(pids)
    # A number that was given anew while they were read can make a process its own forebear.
    seen = set(queue)
    found: list[BornT] = []
    while queue:
        for child in by_parent.get(queue.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                queue.append(child.pid)
    return found
