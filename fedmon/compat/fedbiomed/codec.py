"""Bytes of Fed-BioMed 4.4 to messages and back."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidIdError, InvalidMessageError
from fedmon.common.ids import checked_id
from fedmon.common.wire import codec
from fedmon.common.wire.fedbiomed4 import (
    PROTOCOL_VERSION,
    UNKNOWN_RESEARCHER,
    Log,
    ServedRequest,
    UnderstoodReply,
    WireMessage,
    WireScalar,
    converted,
)
from fedmon.common.wire.messages import ErrorCode, LogRecord

MAX_MESSAGE_BYTES = 990_000
"""This wire has no pages: a list of any length comes whole."""

REQUEST_COMMANDS = frozenset(kind.__struct_config__.tag for kind in typing.get_args(ServedRequest))

_MAX_ID = 256


class LogText(msgspec.Struct, frozen=True, kw_only=True):
    """The ``msg`` of a log record; ``asctime`` is the node's local time and names no zone."""

    asctime: str
    node_id: str
    name: str
    level: str
    message: str


def encode(message: WireMessage | Mapping[str, Any]) -> bytes:
    """Return the JSON bytes of a message, given with or without its class.

    Raises InvalidMessageError when they are too many for one.
    """
    return codec.encode(message, max_bytes=MAX_MESSAGE_BYTES)


def encode_log(record: LogRecord) -> bytes:
    """Return the bytes of a record of a node's log. Raises InvalidMessageError when they are too many."""
    when = record.time.astimezone()
    text = LogText(
        asctime=f"{when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d}",
        node_id=record.node_id,
        name=record.logger,
        level=record.level,
        message=record.msg,
    )
    msg = msgspec.json.encode(text).decode()
    return encode(Log(researcher_id=UNKNOWN_RESEARCHER, node_id=record.node_id, level=record.level, msg=msg))


def decode_request(payload: bytes) -> ServedRequest:
    """Decode a researcher's message. Raises InvalidMessageError, with the code of the error."""
    request: ServedRequest = converted(_document(payload), ServedRequest)
    return request


def decode_reply(payload: bytes, *, researcher_id: str) -> UnderstoodReply | None:
    """Decode a node's answer to this researcher; None when it is meant for another.

    Raises InvalidMessageError.
    """
    document = _document(payload)
    if document.get("researcher_id") != researcher_id:
        return None
    reply: UnderstoodReply = converted(document, UnderstoodReply)
    checked_party(reply.node_id, what="node id")
    return reply


def decode_scalar(payload: bytes) -> WireScalar:
    """Decode values of a training loop. Raises InvalidMessageError."""
    scalar: WireScalar = converted(_document(payload), WireScalar)
    checked_party(scalar.node_id, what="node id")
    return scalar


def decode_log(payload: bytes) -> tuple[Log, LogText]:
    """Decode a log record and the JSON text in it. Raises InvalidMessageError."""
    log: Log = converted(_document(payload), Log)
    try:
        text = msgspec.json.decode(log.msg, type=LogText)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise InvalidMessageError(
            f"the text of a log record is malformed: {' '.join(str(error).split())[:300]}"
        ) from None
    checked_party(log.node_id, what="node id")
    return log, text


def sender(payload: bytes) -> str | None:
    """Return the sender of a request that cannot be served, if it names one."""
    try:
        researcher_id = codec.decode_document(payload).get("researcher_id")
    except InvalidMessageError:
        return None
    return researcher_id if isinstance(researcher_id, str) and 0 < len(researcher_id) <= _MAX_ID else None


def answering_node(payload: bytes, *, researcher_id: str) -> str | None:
    """Return the node that sent this researcher an unreadable reply, if it names one."""
    try:
        document = codec.decode_document(payload, max_bytes=MAX_MESSAGE_BYTES)
        if document.get("researcher_id") != researcher_id:
            return None
        return checked_party(str(document.get("node_id")), what="node id")
    except InvalidMessageError:
        return None


def checked_party(party_id: str, *, what: str) -> str:
    """Return an id that can be a topic level. Raises InvalidMessageError."""
    try:
        return checked_id(party_id, what=what)
    except InvalidIdError as error:
        raise InvalidMessageError(str(error)[:300]) from None


def _document(payload: bytes) -> dict[str, Any]:
    document = codec.decode_document(payload, max_bytes=MAX_MESSAGE_BYTES)
    version = document.get("protocol_version")
    if version != PROTOCOL_VERSION:
        raise InvalidMessageError(
            f"message speaks protocol version {version!r:.40} and this side speaks {PROTOCOL_VERSION}",
            code=ErrorCode.VERSION.value,
        )
    return document
