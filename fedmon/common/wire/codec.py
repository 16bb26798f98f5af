"""Bytes become checked messages here, or are refused."""

from __future__ import annotations

import re
import typing
from typing import Any, TypeVar

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.envelope import PROTOCOL
from fedmon.common.wire.messages import AnyReply, AnyRequest, AnyTelemetry, ErrorCode, LogRecord, Presence
from fedmon.common.wire.samples import Columns, SamplesReply

M = TypeVar("M")

MAX_PAYLOAD_BYTES = 100_000
MAX_DEPTH = 32

_encoder = msgspec.json.Encoder()
# Made once: a union costs ten times as much when it is looked into at each message.
_requests: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_replies: msgspec.json.Decoder[AnyReply] = msgspec.json.Decoder(AnyReply)
_presences = msgspec.json.Decoder(Presence)
_telemetry: msgspec.json.Decoder[AnyTelemetry] = msgspec.json.Decoder(AnyTelemetry)
_logs = msgspec.json.Decoder(LogRecord)
_documents: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_STRING = re.compile(rb'"[^"]*"')
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_MAJOR = PROTOCOL.partition("/")[2].partition(".")[0]

REQUEST_COMMANDS = frozenset(kind.__struct_config__.tag for kind in typing.get_args(AnyRequest))


class _Head(msgspec.Struct):
    """Fields that are decoded first, so that an old or new party gets the right error."""

    protocol_version: Any = None
    command: Any = None


_heads = msgspec.json.Decoder(_Head)


def encode(message: object, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return the JSON bytes of a message.

    Raises InvalidMessageError when they would not fit into one MQTT message on every broker.
    """
    payload = _encoder.encode(message)
    _refuse_size(payload, max_bytes)
    return payload


def decode_request(payload: bytes) -> AnyRequest:
    """Decode a researcher's message. Raises InvalidMessageError, with the wire's error code."""
    command = _versioned(payload).command
    if not isinstance(command, str) or command not in REQUEST_COMMANDS:
        raise InvalidMessageError(
            f"command {str(command)[:40]!r} is not one of {', '.join(sorted(REQUEST_COMMANDS))}",
            code=ErrorCode.UNKNOWN_COMMAND.value,
        )
    _refuse_depth(payload)
    return _decoded(payload, _requests)


def decode_reply(payload: bytes) -> AnyReply:
    """Decode a node's message to a researcher. Raises InvalidMessageError."""
    _versioned(payload)
    _refuse_depth(payload)
    message = _decoded(payload, _replies)
    if isinstance(message, SamplesReply) and not all(map(_is_even, message.batches)):
        raise InvalidMessageError("the columns of samples differ in length")
    return message


def decode_presence(payload: bytes) -> Presence:
    """Decode a node's presence. Raises InvalidMessageError."""
    _versioned(payload)
    return _decoded(payload, _presences)


def decode_telemetry(payload: bytes) -> AnyTelemetry:
    """Decode a batch of samples or scalars. Raises InvalidMessageError."""
    _versioned(payload)
    message = _decoded(payload, _telemetry)
    if isinstance(message, Batch) and not _is_even(message):
        raise InvalidMessageError("the columns of a sample batch differ in length")
    return message


def decode_log(payload: bytes) -> LogRecord:
    """Decode one log record. Raises InvalidMessageError."""
    _versioned(payload)
    return _decoded(payload, _logs)


def decode_document(payload: bytes, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> dict[str, Any]:
    """Decode JSON into a mapping.

    Refuses, with InvalidMessageError: more than ``max_bytes``, depth over 32, NaN, Infinity, numbers out of range,
    invalid UTF-8, and anything that is not a JSON object.
    """
    _refuse_size(payload, max_bytes)
    document = _decoded(payload, _documents, "payload is not valid JSON: ")
    _refuse_depth(payload)
    return document


def recover_envelope(payload: bytes) -> dict[str, Any]:
    """Return the readable parts of a refused request's envelope, for the error reply; empty when nothing is."""
    try:
        _refuse_size(payload, MAX_PAYLOAD_BYTES)
        document = _decoded(payload, _documents, "")  # of any depth
    except InvalidMessageError:
        return {}
    wanted: dict[str, type] = {"id": str, "session": str, "sequence": int, "instance": str, "researcher_id": str}
    return {key: document[key] for key, kind in wanted.items() if type(document.get(key)) is kind}


def _is_even(batch: Batch | Columns) -> bool:
    length = len(batch.t)
    return len(batch.mono) == length and all(len(column) == length for column in batch.columns.values())


def _versioned(payload: bytes) -> _Head:
    """Check size, syntax and protocol version; unknown fields are skipped, not built."""
    _refuse_size(payload, MAX_PAYLOAD_BYTES)
    head = _decoded(payload, _heads, "payload is not valid JSON: ")
    version = head.protocol_version
    if not isinstance(version, str):
        raise InvalidMessageError("Object missing required field `protocol_version`", code=ErrorCode.VERSION.value)
    name, _, number = version.partition("/")
    if name != "fedmon" or number.partition(".")[0] != _MAJOR:
        raise InvalidMessageError(
            f"message speaks {version[:40]!r} and this side speaks {PROTOCOL!r}; upgrade the older of the two",
            code=ErrorCode.VERSION.value,
        )
    return head


def _decoded(payload: bytes, decoder: msgspec.json.Decoder[M], before: str = "") -> M:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise InvalidMessageError(before + " ".join(str(error).split())[:300]) from None


def _refuse_size(payload: bytes, max_bytes: int) -> None:
    if len(payload) > max_bytes:
        raise InvalidMessageError(
            f"a message of {len(payload)} bytes is over the limit of {max_bytes}", code=ErrorCode.TOO_LARGE.value
        )


def _refuse_depth(payload: bytes) -> None:
    """Refuse valid JSON that is nested too deeply; only messages with a field of any JSON need it."""
    if payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH:
        return
    if b"\\" in payload:
        payload = payload.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = _STRING.sub(b"", payload.translate(_ONE_KIND, _NOT_STRUCTURE))
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise InvalidMessageError(f"JSON is nested deeper than {MAX_DEPTH}")
