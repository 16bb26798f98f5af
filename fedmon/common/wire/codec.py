"""Bytes become messages here, or are refused here; past this door nobody asks whether a key exists."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire.envelope import PROTOCOL, Message
from fedmon.common.wire.messages import AnyReply, AnyRequest, AnyTelemetry, ErrorCode, LogRecord, Presence
from fedmon.common.wire.samples import Columns, SampleBatch, SamplesReply

M = TypeVar("M")

MAX_PAYLOAD_BYTES = 100_000
MAX_DEPTH = 32
MAX_CONTAINERS = 5_000
"""Arrays and objects in one message: more than any honest one holds, and few enough to be read in milliseconds."""

_encoder = msgspec.json.Encoder()
# Made once: a union costs ten times as much when it is looked into at each message.
_requests: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_replies: msgspec.json.Decoder[AnyReply] = msgspec.json.Decoder(AnyReply)
_presences = msgspec.json.Decoder(Presence)
_telemetry: msgspec.json.Decoder[AnyTelemetry] = msgspec.json.Decoder(AnyTelemetry)
_logs = msgspec.json.Decoder(LogRecord)
_STRUCTURE = b'[]{}":'
_NOT_STRUCTURE = bytes(set(range(256)) - set(_STRUCTURE))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STRING = re.compile(rb'"[^"]*"')
_BLANK_AFTER_QUOTE = re.compile(rb'"[ \t\n\r]')
_BATCH_MEMBERS = len(SampleBatch.__struct_fields__)  # with the command, without the reasons
_DEFAULTED = ("protocol_version", "reasons")
_VERSION, _REASONS = (b'"%b":' % name.encode() for name in _DEFAULTED)
_MAJOR = PROTOCOL.partition("/")[2].partition(".")[0]

REQUEST_COMMANDS = frozenset(
    {
        "ping",
        "list",
        "search",
        "approval",
        "training-plan-status",
        "monitor",
        "ack",
        "run",
        "stop",
        "job-status",
    }
)


def encode(message: Message) -> bytes:
    """Return the JSON bytes of a message.

    Raises InvalidMessageError when they would not fit into one MQTT message on every broker.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidMessageError(
            f"a message of {len(payload)} bytes is over the limit of {MAX_PAYLOAD_BYTES}",
            code=ErrorCode.TOO_LARGE.value,
        )
    return payload


def decode_request(payload: bytes) -> AnyRequest:
    """Decode what a researcher sends. Raises InvalidMessageError, with the wire's error code."""
    document = _versioned(payload)
    command = document.get("command")
    if not isinstance(command, str) or command not in REQUEST_COMMANDS:
        raise InvalidMessageError(
            f"command {str(command)[:40]!r} is not one of {', '.join(sorted(REQUEST_COMMANDS))}",
            code=ErrorCode.UNKNOWN_COMMAND.value,
        )
    return _message(payload, _requests)


def decode_reply(payload: bytes) -> AnyReply:
    """Decode what a node sends to a researcher. Raises InvalidMessageError."""
    _versioned(payload)
    message = _message(payload, _replies)
    if isinstance(message, SamplesReply) and not all(map(_is_even, message.batches)):
        raise InvalidMessageError("the columns of samples differ in length")
    return message


def decode_presence(payload: bytes) -> Presence:
    """Decode a node's presence. Raises InvalidMessageError."""
    _versioned(payload)
    return _message(payload, _presences)


def decode_telemetry(payload: bytes) -> AnyTelemetry:
    """Decode a batch of samples or scalars. Raises InvalidMessageError."""
    batch = _plain_batch(payload)
    if batch is not None:
        return batch
    _versioned(payload)
    message = _message(payload, _telemetry)
    if isinstance(message, SampleBatch) and not _is_even(message):
        raise InvalidMessageError("the columns of a sample batch differ in length")
    return message


def decode_log(payload: bytes) -> LogRecord:
    """Decode one log record. Raises InvalidMessageError."""
    _versioned(payload)
    return _message(payload, _logs)


def decode_document(payload: bytes, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> dict[str, Any]:
    """Decode JSON strictly into a mapping.

    Refuses, with InvalidMessageError: more than ``max_bytes``, depth over 32, duplicate keys, NaN, Infinity, numbers
    out of range, invalid UTF-8, and anything that is not a JSON object.
    """
    if len(payload) > max_bytes:
        raise InvalidMessageError(
            f"a payload of {len(payload)} bytes is over the limit of {max_bytes}",
            code=ErrorCode.TOO_LARGE.value,
        )
    structure = _structure(payload)
    if _too_deep(structure, MAX_CONTAINERS * max(1, max_bytes // MAX_PAYLOAD_BYTES)):
        raise InvalidMessageError(f"JSON is nested deeper than {MAX_DEPTH}")
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as error:
        raise InvalidMessageError(f"payload is not valid JSON: {_one_line(str(error))}") from None
    if not isinstance(document, dict):
        raise InvalidMessageError(f"payload is a JSON {type(document).__name__}, not an object")
    if _members(document, structure.count(b"{")) != structure.count(b":"):
        raise InvalidMessageError("a JSON object names a key twice")
    return document


def recover_envelope(payload: bytes) -> dict[str, Any]:
    """Return the readable parts of a refused request's envelope, for the error reply; empty when nothing is."""
    try:
        document = decode_document(payload)
    except InvalidMessageError:
        return {}
    wanted: dict[str, type] = {"id": str, "session": str, "sequence": int, "instance": str, "researcher_id": str}
    return {key: document[key] for key, kind in wanted.items() if type(document.get(key)) is kind}


def _plain_batch(payload: bytes) -> SampleBatch | None:
    """Decode in one pass a batch that is written plainly; None for anything else, which is for the long way.

    Metrics are most of what a researcher hears, and the long way takes three times as long. Without a blank after any
    quote every key ends in `":`, and a quote inside a string is never bare. So when all fields are there and these
    endings are just as many as the members that were decoded, no key came twice and nothing unknown is inside.
    """
    if len(payload) > MAX_PAYLOAD_BYTES or _BLANK_AFTER_QUOTE.search(payload):
        return None
    try:
        batch = _telemetry.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return None
    if not isinstance(batch, SampleBatch) or batch.protocol_version != PROTOCOL:
        return None
    # The two fields that have a default must be seen in the text, and not as the name of a metric.
    if _VERSION not in payload or any(name in columns for name in _DEFAULTED for columns in (batch.m, batch.reasons)):
        return None
    members = _BATCH_MEMBERS + (_REASONS in payload) + len(batch.m) + len(batch.reasons)
    return batch if payload.count(b'":') == members and _is_even(batch) else None


def _is_even(batch: SampleBatch | Columns) -> bool:
    length = len(batch.t)
    return len(batch.mono) == length and all(len(column) == length for column in batch.m.values())


def _versioned(payload: bytes) -> dict[str, Any]:
    document = decode_document(payload)
    version = document.get("protocol_version")
    if not isinstance(version, str):
        raise InvalidMessageError("Object missing required field `protocol_version`", code=ErrorCode.VERSION.value)
    name, _, number = version.partition("/")
    if name != "fedmon" or number.partition(".")[0] != _MAJOR:
        raise InvalidMessageError(
            f"message speaks {version[:40]!r} and this side speaks {PROTOCOL!r}; upgrade the older of the two",
            code=ErrorCode.VERSION.value,
        )
    return document


def _message(payload: bytes, decoder: msgspec.json.Decoder[M]) -> M:
    """Decode JSON that `decode_document` let pass."""
    try:
        return decoder.decode(payload)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise InvalidMessageError(_one_line(str(error))) from None


def _structure(payload: bytes) -> bytes:
    """Return the brackets and colons of a JSON text, without what its strings hold."""
    if b"\\" in payload:
        payload = payload.replace(rb"\\", b"").replace(rb"\"", b"")
    return _STRING.sub(b"", payload.translate(None, _NOT_STRUCTURE))


def _too_deep(structure: bytes, most: int) -> bool:
    containers = structure.count(b"[") + structure.count(b"{")
    if containers <= MAX_DEPTH:
        return False
    if containers > most:
        raise InvalidMessageError(f"JSON holds {containers} arrays and objects; at most {most} are read")
    brackets = structure.translate(_ONE_KIND, b":")
    for _ in range(MAX_DEPTH):
        peeled = brackets.replace(b"[]", b"")
        if len(peeled) == len(brackets):
            break
        brackets = peeled
    return bool(brackets)


def _members(document: dict[str, Any], objects: int) -> int:
    """Count the members of all ``objects`` JSON objects in a document; looks no further than the last of them."""
    members, waiting = 0, [document]
    containers: list[list[Any]] = []
    while waiting or containers:
        if waiting:
            value = waiting.pop()
            members += len(value)
            objects -= 1
            inside: Any = value.values()
        elif objects > 0:
            inside = containers.pop()
        else:
            break
        for item in inside:
            if type(item) is dict:
                waiting.append(item)
            elif type(item) is list:
                containers.append(item)
    return members


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
