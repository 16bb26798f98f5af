"""Reader of the frames of a running plan: nothing in them is trusted, and every length has a bound. Needs msgspec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.plan import frames

_FORMATS: dict[bytes, Literal["json", "npz"]] = {b"j": "json", b"n": "npz"}


class BadFrameError(InvalidInputError):
    """The bytes in a plan's channel are no frame; later bytes cannot be read either."""


class OutputTooLargeError(InvalidInputError):
    """A plan announced a result of more bytes than the job may return."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter runs, and the plan has not started yet."""


_Name = Annotated[str, msgspec.Meta(max_length=frames.MAX_NAME_CHARACTERS, pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]


class Scalars(msgspec.Struct, frozen=True, kw_only=True):
    """The plan called ``context.report``."""

    values: Annotated[dict[_Name, float | None], msgspec.Meta(min_length=1, max_length=frames.MAX_VALUES)]
    step: Annotated[int, msgspec.Meta(ge=-frames.MAX_STEP, le=frames.MAX_STEP)] | None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """The plan called ``context.log``."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    message: Annotated[str, msgspec.Meta(max_length=frames.MAX_LOG_CHARACTERS)]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The next bytes of the result; ``data`` is valid until the next `feed`."""

    data: memoryview


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The plan ended without a result, with the reason."""

    state: Literal["failed", "invalid-result", "output-limit"]
    reason: Annotated[str, msgspec.Meta(max_length=frames.MAX_REASON_CHARACTERS)]
    type: Annotated[str, msgspec.Meta(max_length=frames.MAX_TYPE_CHARACTERS)]
    message: Annotated[str, msgspec.Meta(max_length=frames.MAX_MESSAGE_CHARACTERS)] | None = None
    traceback: Annotated[str, msgspec.Meta(max_length=frames.MAX_TRACEBACK_CHARACTERS)] | None = None


Frame = Begun | Scalars | LogLine | Piece | Failure
_DECODERS: dict[bytes, msgspec.json.Decoder[Frame]] = {
    frames.BEGUN: msgspec.json.Decoder(Begun),
    frames.SCALARS: msgspec.json.Decoder(Scalars),
    frames.LOG: msgspec.json.Decoder(LogLine),
    frames.FAILURE: msgspec.json.Decoder(Failure),
}


class FrameReader:
    """Turns bytes in pieces of any size into frames; holds at most one frame, and no part of a result.

    ``result_format`` is None until a result begins; ``has_ended`` is True after a whole result or a failure. Not for
    several threads.
    """

    def __init__(self, *, output_bytes: int) -> None:
        self._output_bytes = output_bytes
        self._held = bytearray()
        self._left = 0
        self.result_format: Literal["json", "npz"] | None = None
        self.has_ended = False

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yield the frames that these bytes complete; to be exhausted before the next call.

        Raises BadFrameError, and OutputTooLargeError before a byte of such a result is yielded.
        """
        view = memoryview(data)
        while view:
            if self._left:
                piece = view[: self._left]
                view = view[len(piece) :]
                self._left -= len(piece)
                self.has_ended = not self._left
                yield Piece(data=piece)
            elif self.has_ended:
                raise BadFrameError("the plan sent more after its result")
            else:
                missing = frames.HEADER_BYTES - len(self._held)
                if missing <= 0:
                    missing += self._length()
                self._held += view[:missing]
                view = view[missing:]
                frame = self._frame() if len(self._held) >= frames.HEADER_BYTES else None
                if frame is not None:
                    yield frame

    def close(self) -> None:
        """End the input. Raises BadFrameError in the middle of a frame."""
        if self._held or self._left:
            raise BadFrameError("the plan's channel ended in the middle of a frame")

    def _length(self) -> int:
        return int.from_bytes(self._held[1 : frames.HEADER_BYTES], "big")

    def _frame(self) -> Frame | None:
        """Return the held frame if it is whole; of a result, read just the header."""
        # No error tells of the frame: a plan could have its data leave in an error of ours.
        kind, length = bytes(self._held[:1]), self._length()
        if kind in _FORMATS:
            if not length:
                raise BadFrameError("the plan sent a result without a byte")
            if length > self._output_bytes:
                raise OutputTooLargeError(f"the result has {length} bytes, and the job may return {self._output_bytes}")
            self.result_format, self._left = _FORMATS[kind], length
            self._held.clear()
            return None
        if kind not in _DECODERS:
            raise BadFrameError("the plan sent a frame of an unknown kind")
        if length > frames.MAX_FRAME_BYTES:
            raise BadFrameError(f"the plan sent a frame of more than {frames.MAX_FRAME_BYTES} bytes")
        if len(self._held) < frames.HEADER_BYTES + length:
            return None
        payload = bytes(self._held[frames.HEADER_BYTES :])
        self._held.clear()
        try:
            frame = _DECODERS[kind].decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # The error may hold words of the plan, which may have to stay on the node.
            raise BadFrameError(f"the plan sent a frame of kind {kind!r} that is not as fedmon writes it") from None
        self.has_ended = kind == frames.FAILURE
        return frame
