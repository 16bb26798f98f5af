"""The frames from a running plan to its keeper, and the pipe for them.

A frame is one byte of kind, eight bytes of length, big-endian, and that many bytes of payload. The payload of a scalar,
a log line and a failure is a JSON object; that of a result is a parcel (see parcels.py), and its kind is the parcel's
format. The first frame says that the job begins, before the plan runs; then come any number of scalars and log lines,
and last either one result or one failure. The keeper reads them and trusts nothing.
"""

from __future__ import annotations

import _thread

# `os` takes several milliseconds to import where nothing has done so yet, and these are the same functions.
import posix

from fedmon.common.errors import FedmonError
from fedmon.plan.values import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmon.plan.parcels import Packed

BEGUN = b"B"
"""``{}``: the sandbox and the interpreter work; later failures are the plan's."""
SCALARS = b"S"
"""``{"values": {name: number or null}, "step": integer or null}``"""
LOG = b"L"
"""``{"level": text, "message": text}``"""
FAILURE = b"E"
"""``{"state": text, "reason": text, "type": text, "message": text or null, "traceback": text or null}``"""
RESULTS = {"json": b"j", "npz": b"n"}
"""The kind of a result by its format."""

HEADER_BYTES = 9
MAX_FRAME_BYTES = 524_288
"""The longest payload of a frame that is no result."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FAILED, INVALID_RESULT, OUTPUT_LIMIT = "failed", "invalid-result", "output-limit"
"""The state of a job in a failure, as in JobState."""

MAX_VALUES = 100
"""Names in one report."""
MAX_NAME_CHARACTERS = 64
MAX_STEP = 2**53
MAX_LOG_CHARACTERS = 4096
MAX_REASON_CHARACTERS = 1024
MAX_TYPE_CHARACTERS = 256
MAX_MESSAGE_CHARACTERS = 4096
MAX_TRACEBACK_CHARACTERS = 16_384


def header(kind: bytes, length: int) -> bytes:
    """Return the first bytes of a frame whose payload has ``length`` bytes."""
    return kind + length.to_bytes(8, "big")


class ChannelClosedError(FedmonError):
    """The channel is closed: by the plan, or because this is a process that the plan started."""


class FrameChannel:
    """Sends frames, each whole, from any thread of the plan's first process; a forked process has no channel.

    A frame of a signal handler that interrupts a frame of its thread is sent after that one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = _thread.RLock()
        self._is_forked = self._has_ended = False
        self._waiting: list[bytes] = []
        posix.set_inheritable(descriptor, False)  # noqa: FBT003 - the signature is posix'
        posix.register_at_fork(after_in_child=self._leave_to_parent)

    def send(self, kind: bytes, fields: Mapping[str, object]) -> None:
        """Send a frame of JSON; after the result or failure nothing is sent. Raises ChannelClosedError."""
        payload = json_text(fields).encode()
        self._check()
        self._waiting.append(header(kind, len(payload)) + payload)
        if not self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition asks it
            with self._lock:
                self._send_waiting()

    def send_result(self, packed: Packed) -> None:
        """Send the result, and nothing after it. Raises ChannelClosedError."""
        head = header(RESULTS[packed.format], packed.size_bytes)
        self._check()
        with self._lock:
            self._send_waiting()
            self._has_ended = True
            for piece in (head, *packed.pieces):
                self._write(piece)

    def _send_waiting(self) -> None:
        while self._waiting and not self._has_ended:
            frame = self._waiting.pop(0)
            self._has_ended = frame[:1] == FAILURE
            self._write(frame)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[posix.write(self._descriptor, view) :]
        except OSError:
            raise ChannelClosedError("the plan closed the descriptor that it reports through") from None

    def _check(self) -> None:
        if self._is_forked:
            raise ChannelClosedError(
                "this process was started by the plan, and only the plan's first process can report, log and return: "
                "hand the values back to it"
            )

    def _leave_to_parent(self) -> None:
        self._is_forked = True
        try:  # noqa: SIM105 - to import contextlib takes time
            posix.close(self._descriptor)
        except OSError:  # the plan closed it
            pass
