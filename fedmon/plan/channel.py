"""The way out of a running plan: one pipe, which no accident of the plan can make speak nonsense."""

from __future__ import annotations

import _thread

# `os` takes several milliseconds to import where nothing has done so yet, and these are the same functions.
import posix

from fedmon.common.errors import FedmonError
from fedmon.plan import frames
from fedmon.plan.json_text import flat_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmon.plan.parcels import Packed

_CHUNK_BYTES = 1 << 20


class ChannelClosedError(FedmonError):
    """There is no way out any more: the plan closed it, or this is a process that the plan started."""


class Channel:
    """Sends frames, each whole, from any thread of the plan's first process.

    A process that the plan forks or starts has no channel. Whether the descriptor still is the pipe that was given is
    looked at each time, as a plan that closes all descriptors would otherwise write frames into its next file. A signal
    handler that sends while its own thread does so already has its frame sent after that one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity = self._look()
        self._lock = _thread.allocate_lock()
        self._process = posix.getpid()
        self._has_ended = False
        self._sending: set[int] = set()
        self._later: list[bytes] = []
        posix.set_inheritable(descriptor, False)  # noqa: FBT003 - the signature is posix'
        posix.register_at_fork(after_in_child=self._leave_to_parent)

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that the channel was made in."""
        return posix.getpid() == self._process

    def send(self, kind: bytes, fields: Mapping[str, object]) -> None:
        """Send a frame of JSON; after the result or failure nothing is sent. Raises ChannelClosedError."""
        payload = flat_object(fields)
        frame = frames.header(kind, len(payload)) + payload
        thread = _thread.get_ident()
        if thread in self._sending:
            self._later.append(frame)
            return
        self._sending.add(thread)
        try:
            with self._lock:
                if self._has_ended:
                    return
                self._check()
                self._write_later()
                self._has_ended = kind == frames.FAILURE
                self._write(frame)
                if not self._has_ended:
                    self._write_later()
        finally:
            self._sending.discard(thread)

    def send_result(self, packed: Packed) -> None:
        """Send the result, and nothing after it. Raises ChannelClosedError."""
        head = frames.header(frames.RESULTS[packed.format], packed.size_bytes)
        with self._lock:
            if self._has_ended:
                return
            self._check()
            self._write_later()
            self._has_ended = True
            self._sending.add(_thread.get_ident())  # whatever a signal handler has to say now comes too late
            self._write(head)
            packed.write(self)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write a piece of the result; for `Packed.write`."""
        view = memoryview(data).cast("B") if data else memoryview(b"")
        for start in range(0, len(view), _CHUNK_BYTES):
            self._write(view[start : start + _CHUNK_BYTES])
        return len(view)

    def _write_later(self) -> None:
        while self._later:
            self._write(self._later.pop(0))

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[posix.write(self._descriptor, view) :]
        except OSError as error:
            raise ChannelClosedError(f"nobody listens to this plan any more: {error.strerror}") from error

    def _check(self) -> None:
        if not self.is_ours:
            raise ChannelClosedError(
                "this process was started by the plan, and only the plan's first process can report, log and return: "
                "hand the values back to it"
            )
        if self._look() != self._identity:
            raise ChannelClosedError("the plan closed the descriptor that it reports through")

    def _look(self) -> tuple[int, int] | None:
        try:
            status = posix.fstat(self._descriptor)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _leave_to_parent(self) -> None:
        """In a forked child: close the channel, and take no lock that a thread of the parent held."""
        self._lock = _thread.allocate_lock()
        if self._look() == self._identity:
            posix.close(self._descriptor)
