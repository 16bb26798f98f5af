"""Reader of the frames of a running plan: nothing in them is trusted, and every length has a bound."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, cast

from fedmon.common.errors import InvalidInputError
from fedmon.plan import frames

_FORMATS: dict[bytes, Literal["json", "npz"]] = {b"j": "json", b"n": "npz"}


class BadFrameError(InvalidInputError):
    """What a plan wrote into its channel is no frame; nothing that comes after it can be read."""


class OutputTooLargeError(InvalidInputError):
    """A result is announced with more bytes than the job may return; ``size_bytes`` is how many."""

    def __init__(self, size_bytes: int, output_bytes: int) -> None:
        super().__init__(f"the result has {size_bytes} bytes, and the job may return {output_bytes}")
        self.size_bytes, self.output_bytes = size_bytes, output_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """The interpreter is there, and nothing of the plan ran before this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scalars:
    """The plan called ``context.report``."""

    values: dict[str, float | None]
    step: int | None
    t: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """The plan called ``context.log``."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    message: str
    t: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The next bytes of the result; ``data`` is of use until the next `feed`."""

    data: memoryview


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The plan has no result, and why."""

    state: Literal["failed", "invalid-result", "output-limit"]
    reason: str
    type: str
    message: str | None
    traceback: str | None


Frame = Begun | Scalars | LogLine | Piece | Failure


class FrameReader:
    """Turn bytes, in whatever pieces they come, into frames; holds at most one frame, and nothing of a result.

    ``result_format`` is None until a result begins; ``result_bytes`` is what it announced; ``has_ended`` tells that a
    whole result, or a failure, was read. Not for several threads.
    """

    def __init__(self, *, output_bytes: int) -> None:
        self._output_bytes = output_bytes
        self._held = bytearray()
        self._left = 0
        self.result_format: Literal["json", "npz"] | None = None
        self.result_bytes = 0
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
                view = self._take(view)
                frame = self._frame()
                if frame is not None:
                    yield frame

    def close(self) -> None:
        """Say that nothing follows. Raises BadFrameError in the middle of a frame."""
        if self._held or self._left:
            raise BadFrameError("the plan's channel ended in the middle of a frame")

    def _take(self, view: memoryview) -> memoryview:
        """Hold what belongs to the header or payload that is being read, and return the rest."""
        wanted = frames.HEADER_BYTES
        if len(self._held) >= wanted:
            wanted += self._length()
        missing = wanted - len(self._held)
        self._held += view[:missing]
        return view[missing:]

    def _length(self) -> int:
        return int.from_bytes(self._held[1 : frames.HEADER_BYTES], "big")

    def _frame(self) -> Frame | None:
        if len(self._held) < frames.HEADER_BYTES:
            return None
        kind, length = bytes(self._held[:1]), self._length()
        if kind in _FORMATS:
            self._begin_result(_FORMATS[kind], length)
            return None
        if kind not in _READERS:
            raise BadFrameError(f"the plan sent a frame of kind {kind!r}, which there is not")
        if length > frames.MAX_FRAME_BYTES:
            raise BadFrameError(f"the plan sent a frame of {length} bytes; {frames.MAX_FRAME_BYTES} are the most")
        if len(self._held) < frames.HEADER_BYTES + length:
            return None
        payload = bytes(self._held[frames.HEADER_BYTES :])
        self._held.clear()
        frame = _READERS[kind](_fields(payload))
        self.has_ended = kind == frames.FAILURE
        return frame

    def _begin_result(self, parcel_format: Literal["json", "npz"], length: int) -> None:
        if not length:
            raise BadFrameError("the plan sent a result without a byte")
        if length > self._output_bytes:
            raise OutputTooLargeError(length, self._output_bytes)
        self._held.clear()
        self.result_format, self.result_bytes, self._left = parcel_format, length, length


def _begun(_fields: dict[str, Any]) -> Begun:
    return Begun()


def _scalars(fields: dict[str, Any]) -> Scalars:
    values, step = fields.get("values"), fields.get("step")
    if not isinstance(values, dict) or len(values) > frames.MAX_VALUES:
        raise BadFrameError(f"a report is no object of at most {frames.MAX_VALUES} names")
    for name, value in values.items():
        if not frames.is_scalar_name(name):
            # The plan chose it, and its words may have to stay on the node: see leaving.py.
            raise BadFrameError("a report has a name that is none")
        if value is not None and not _is_number(value):
            raise BadFrameError(f"a report has no number as {name}")
    if step is not None and (type(step) is not int or abs(step) > frames.MAX_STEP):
        raise BadFrameError("a report has a step that is no integer")
    numbers = {name: None if value is None else float(value) for name, value in values.items()}
    return Scalars(values=numbers, step=step, t=_time(fields))


def _log(fields: dict[str, Any]) -> LogLine:
    level = fields.get("level")
    if level not in frames.LEVELS:
        raise BadFrameError("a log line has no level")
    message = _text(fields, "message", frames.MAX_LOG_CHARACTERS)
    if message is None:
        raise BadFrameError("a log line has no message")
    return LogLine(level=level, message=message, t=_time(fields))


def _failure(fields: dict[str, Any]) -> Failure:
    state = fields.get("state")
    if state not in frames.STATES:
        raise BadFrameError("a failure has no state")
    return Failure(
        state=state,
        reason=_text(fields, "reason", frames.MAX_REASON_CHARACTERS) or "",
        type=_text(fields, "type", frames.MAX_TYPE_CHARACTERS) or "",
        message=_text(fields, "message", frames.MAX_MESSAGE_CHARACTERS),
        traceback=_text(fields, "traceback", frames.MAX_TRACEBACK_CHARACTERS),
    )


_READERS: dict[bytes, Callable[[dict[str, Any]], Frame]] = {
    frames.BEGUN: _begun,
    frames.SCALARS: _scalars,
    frames.LOG: _log,
    frames.FAILURE: _failure,
}


def _fields(payload: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(payload.decode(), parse_constant=_refuse)
        if b"\\u" in payload:
            json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair could not be sent on
    except (ValueError, RecursionError) as error:
        raise BadFrameError(f"the plan sent a frame that is no JSON: {str(error)[:200]}") from None
    if not isinstance(fields, dict):
        raise BadFrameError("the plan sent a frame that is no JSON object")
    return cast("dict[str, Any]", fields)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _text(fields: dict[str, Any], name: str, longest: int) -> str | None:
    text = fields.get(name)
    if text is not None and (not isinstance(text, str) or len(text) > longest):
        raise BadFrameError(f"a frame's {name} is no text of at most {longest} characters")
    return text


def _time(fields: dict[str, Any]) -> float:
    t = fields.get("t")
    if not _is_number(t):
        raise BadFrameError("a frame has no time")
    return float(cast("float", t))


def _is_number(value: object) -> bool:
    if type(value) is int:
        return abs(value) < 2**1023
    return type(value) is float and math.isfinite(value)
