"""The kernel's reports of forks: the only sure sign of an orphan whose parent was never seen."""

from __future__ import annotations

import array
import contextlib
import socket
import struct
import sys
from pathlib import Path

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
"""Offsets in a message: the kind of event, the four numbers of a fork, and two of these."""


class ForkEvents:
    """Listens to the births of processes; each takes a microsecond or two to read. For one thread.

    ``is_open`` is false if the kernel does not allow it (before Linux 6.6 only root may listen), or if its numbers are
    not ours (inside a container). Reports that come too fast are lost, and missing from ``parents``.
    Source: Linux drivers/connector/cn_proc.c, include/uapi/linux/cn_proc.h, proc_ns.h.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._buffer = bytearray(512)
        self.parents: dict[int, int] = {}
        """The process that forked each process, of the births reported since the last look but one."""
        self._fresh: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        """Tell whether births are reported."""
        return self._socket is not None

    def open(self) -> None:
        """Begin to listen, if that is possible; once, until `close`."""
        if self._socket is not None:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        with contextlib.suppress(OSError), contextlib.ExitStack() as failed:
            # Our process numbers must be the kernel's own, as in its reports.
            if Path("/proc/self/ns/pid").stat().st_ino != _INITIAL_PID_NAMESPACE:
                return
            listening = failed.enter_context(socket.socket(socket.AF_NETLINK, kind, _CONNECTOR))
            listening.bind((0, _PROCESS_EVENTS))
            with contextlib.suppress(OSError):  # only root may pass the system's bound
                listening.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
            listening.send(_ASK.pack(_ASK.size, _DONE, 0, 0, 0, _PROCESS_EVENTS, 1, 0, 0, 4, 0, _LISTEN))
            if not _refused(listening):
                _keep_births_only(listening)
                failed.pop_all()
                self._socket = listening

    def look(self) -> bool:
        """Read the reports since the last look; return False if births are not reported."""
        if self._socket is None:
            return False
        before, self._fresh = self._fresh, {}
        for _ in range(_MAX_EVENTS):
            try:
                self._socket.recv_into(self._buffer)
            except BlockingIOError:
                break
            except OSError:  # some were lost; those that follow are good
                continue
            kind, _, parent, thread, child = _BIRTH.unpack_from(self._buffer, _WHAT)
            if kind == _FORK and thread == child:  # other events may have come before the filter
                self._fresh[child] = parent
        self.parents = {**before, **self._fresh}
        return True

    def close(self) -> None:
        """Listen no longer."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.parents, self._fresh = {}, {}


def _refused(listening: socket.socket) -> bool:
    """Read the kernel's answer, which is ready once the question was sent; births may come before. Raises OSError."""
    while True:
        message = listening.recv(512)
        if len(message) > _EVENT and struct.unpack_from("=I", message, _WHAT)[0] == 0:
            return bool(struct.unpack_from("=I", message, _EVENT)[0])


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
        (0x1D, 0, 1, 0),  # differs from the kept one: it is a thread, drop
        (0x06, 0, 0, 0xFFFF),  # pass
        (0x06, 0, 0, 0),  # drop
    )
    program = array.array("B", b"".join(struct.pack("=HBBI", *step) for step in steps))
    address, _ = program.buffer_info()
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(steps), address))
