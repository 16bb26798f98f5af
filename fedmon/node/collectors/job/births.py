"""New processes of this machine, found without looking at the old ones again, and the kernel's word on forks."""

from __future__ import annotations

import array
import contextlib
import errno
import itertools
import os
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedmon.node.collectors.base import CollectorUnavailableError, why
from fedmon.node.collectors.job.process import Birth, birth_of
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import read_file

LIST_EVERY_S = 10.0
MAX_PROBES = 64
"""Up to this many new numbers are tried one by one; for more of them, listing all processes is cheaper."""

_MAX_KEPT = 20_000
_YOUNGEST = 16
"""So many of the numbers given last may belong to processes that are being made and cannot be seen yet."""
_CONNECTOR = 11
_PROCESS_EVENTS = 1
_LISTEN = 1
_FORK = 1
_DONE = 3
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_INITIAL_PID_NAMESPACE = 0xEFFF_FFFC
_QUEUE_BYTES = 4_194_304
_MAX_EVENTS = 20_000

_ASK = struct.Struct("=IHHII IIIIHH I")
_BIRTH = struct.Struct("=I12xIIII")
_WHAT, _EVENT, _CHILD_PID, _CHILD_TGID = 36, 52, 60, 64
"""Where in a message the kind of event, the four numbers of a fork, and two of these lie."""


class Births:
    """Finds new processes for all jobs of a node; each job reads on from its own position. Safe from any thread.

    The kernel gives numbers in turn, and the last field of ``loadavg`` is the one given last: while it stands still
    there is no new process anywhere, which costs one read to know, and what was born since the last look lies between
    two values of it. Every 10 s all numbers are listed, for what this does not see (a process that asked for a number
    of its own). Where ``proc`` shows other numbers than ours (another name space, a tree of files) every look is a
    whole scan. Source: Linux fs/proc/loadavg.c and kernel/pid.c, idr_alloc_cyclic.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = os.fsencode(proc)
        self._loadavg = ProcFile(proc / "loadavg", size_bytes=128)
        self._events = ForkEvents()
        self._is_ours = _shows_us(proc)
        self._last: int | None = None
        self._known: set[int] = set()
        self._listed_at = float("-inf")
        self._again: list[int] = []
        self._kept: deque[Birth] = deque(maxlen=_MAX_KEPT)
        self._position = 0
        self._lock = threading.Lock()

    def everything(self) -> list[Birth]:
        """Return all processes that there are. Raises CollectorUnavailableError when they cannot be listed."""
        return self._read(self._listing())

    def since(self, position: int | None, mono: float) -> tuple[Sequence[Birth] | None, int]:
        """Return what was born since a position, parents before children, and the position to go on from.

        ``mono`` is the monotonic time of now. None instead of births means: look at everything, for the position is
        too old or not known. Raises CollectorUnavailableError when processes cannot be listed.
        """
        with self._lock:
            if self._last is None and self._is_ours:
                self._events.open()
            found = self._look(mono)
            if found and self._events.is_open:
                self._events.look()
                found = [birth._replace(ancestors=self._ancestors(birth.pid)) for birth in found]
            self._kept.extend(found)
            self._position += len(found)
            missing = None if position is None else self._position - position
            if missing is None or missing > len(self._kept):
                return None, self._position
            return list(itertools.islice(self._kept, len(self._kept) - missing, None)), self._position

    @property
    def hears_forks(self) -> bool:
        """Tell whether the kernel says who forked whom."""
        return self._events.is_open

    def rest(self) -> None:
        """Close everything while nobody looks; the next look begins anew."""
        with self._lock:
            self._loadavg.close()
            self._events.close()
            self._last = None

    def _look(self, mono: float) -> list[Birth]:
        if not self._is_ours:
            return self.everything()
        try:
            last = int(self._loadavg.head().split()[4])
        except (CollectorUnavailableError, ValueError, IndexError):
            return self.everything()
        before, self._last = self._last, last
        again, self._again = self._again, []
        if before is None:  # who joins now scans for itself
            self._known, self._listed_at = set(self._listing()), mono
            return []
        is_listing_due = mono - self._listed_at >= LIST_EVERY_S
        if last == before and not again and not is_listing_due:
            return []
        gap = last - before
        if 0 <= gap <= MAX_PROBES and not is_listing_due:
            return [*self._read(again), *self._read(range(before + 1, last + 1), youngest=last)]
        there = self._listing()
        new = [pid for pid in there if pid not in self._known or _is_between(pid, before, last)]
        self._known, self._listed_at = set(there), mono
        self._again = [pid for pid in range(max(1, last - _YOUNGEST + 1), last + 1) if pid not in self._known]
        # In the order in which the numbers were given, which goes on from the smallest after the largest.
        return self._read(sorted(new, key=lambda pid: (pid <= last, pid) if gap < 0 else (False, pid)))

    def _ancestors(self, pid: int) -> tuple[int, ...]:
        found: list[int] = []
        while (parent := self._events.parents.get(pid)) is not None and parent not in found:
            found.append(parent)
            pid = parent
        return tuple(found)

    def _listing(self) -> list[int]:
        try:
            names = os.listdir(self._proc)  # noqa: PTH208 - names are all that is wanted, and there are thousands
        except OSError as error:
            raise why(error) from None
        return [int(name) for name in names if name.isdigit()]

    def _read(self, pids: Iterable[int], *, youngest: int = 0) -> list[Birth]:
        found = []
        for pid in pids:
            try:
                found.append(birth_of(pid, read_file(b"%s/%d/stat" % (self._proc, pid), 1024)))
            except (OSError, ValueError, IndexError):
                if youngest and youngest - pid < _YOUNGEST:
                    self._again.append(pid)
        return found


def _is_between(pid: int, before: int, last: int) -> bool:
    """Tell whether a number was given after ``before`` and up to ``last``, where numbers begin again at the end."""
    return before < pid <= last if before <= last else pid > before or pid <= last


def is_thread(folder: bytes, pid: int) -> bool:
    """Tell whether a number belongs to a thread that is not the first of its process; gone counts as one."""
    try:
        text = read_file(folder + b"/status", 4096)
    except OSError:
        return True
    return b"\nTgid:\t%d\n" % pid not in text


def _shows_us(proc: Path) -> bool:
    try:
        return (proc / "self").readlink().name == str(os.getpid())
    except OSError:
        return False


class ForkEvents:
    """Listens to the births of processes; each takes a microsecond or two to read.

    ``is_open`` is false where the kernel does not let us listen (before Linux 6.6 only root may), or where its numbers
    are not ours (inside a container). What comes too fast is lost, and then ``parents`` knows less. For one thread.
    Source: Linux drivers/connector/cn_proc.c, include/uapi/linux/cn_proc.h, proc_ns.h.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._buffer = bytearray(512)
        self.parents: dict[int, int] = {}
        """The process that forked each process, of the births that were told since the last look but one."""
        self._fresh: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        """Tell whether births are told."""
        return self._socket is not None

    def open(self) -> None:
        """Begin to listen, where that is possible."""
        if self._socket is not None or not _sees_all_processes():
            return
        try:
            listening = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _CONNECTOR)
        except OSError:
            return
        try:
            listening.bind((0, _PROCESS_EVENTS))
            _enlarge(listening)
            listening.send(_ASK.pack(_ASK.size, _DONE, 0, 0, 0, _PROCESS_EVENTS, 1, 0, 0, 4, 0, _LISTEN))
            if _refused(listening):
                listening.close()
                return
            _keep_births_only(listening)
        except OSError:
            listening.close()
            return
        self._socket = listening

    def look(self) -> None:
        """Take what was told since the last look."""
        if self._socket is None:
            return
        before, self._fresh = self._fresh, {}
        for _ in range(_MAX_EVENTS):
            try:
                self._socket.recv_into(self._buffer)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # some were lost; those that follow are good
                    continue
                self.close()
                return
            kind, _, parent, thread, child = _BIRTH.unpack_from(self._buffer, _WHAT)
            if kind == _FORK and thread == child:  # other events may have come before the filter
                self._fresh[child] = parent
        self.parents = {**before, **self._fresh}

    def close(self) -> None:
        """Listen no longer."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.parents, self._fresh = {}, {}


def _sees_all_processes() -> bool:
    """Tell whether our process numbers are the kernel's own, which events are told in."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE  # noqa: PTH116 - one call
    except OSError:
        return False


def _enlarge(listening: socket.socket) -> None:
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
    except OSError:  # only root may pass the system's bound
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)


def _refused(listening: socket.socket) -> bool:
    """Read the kernel's answer, which is there when the question was sent; births may come before it."""
    for _ in range(_MAX_EVENTS):
        try:
            message = listening.recv(512)
        except BlockingIOError:
            return True
        if len(message) > _EVENT and struct.unpack_from("=I", message, _WHAT)[0] == 0:
            return bool(struct.unpack_from("=I", message, _EVENT)[0])
    return True


def _keep_births_only(listening: socket.socket) -> None:
    """Have the kernel drop all events but births of processes: threads, programs begun, ends.

    Source: Linux Documentation/networking/filter.rst; words are compared in the network's order.
    """
    fork = int.from_bytes(_FORK.to_bytes(4, sys.byteorder), "big")
    steps = (
        (0x20, 0, 0, _WHAT),  # load the kind of event
        (0x15, 0, 5, fork),  # another one: drop
        (0x20, 0, 0, _CHILD_PID),
        (0x07, 0, 0, 0),  # keep it
        (0x20, 0, 0, _CHILD_TGID),
        (0x1D, 0, 1, 0),  # differs from what was kept: it is a thread, drop
        (0x06, 0, 0, 0xFFFF),  # pass
        (0x06, 0, 0, 0),  # drop
    )
    program = array.array("B", b"".join(struct.pack("=HBBI", *step) for step in steps))
    address, _ = program.buffer_info()
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(steps), address))
