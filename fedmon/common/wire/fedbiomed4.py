"""The wire of Fed-BioMed 4.4: its topics, its versions, and bytes to messages and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from fedmon.common.errors import InvalidIdError, InvalidMessageError
from fedmon.common.ids import checked_id
from fedmon.common.wire.codec import decode_document
from fedmon.common.wire.fedbiomed4_messages import (
    PROTOCOL_VERSION,
    AnyReply,
    AnyRequest,
    Log,
    LogText,
    WireMessage,
    WireReply,
    WireScalar,
)
from fedmon.common.wire.messages import ErrorCode

NODES = "general/nodes"
REPLIES = "general/researcher"
MONITORING = "general/monitoring"
LOGGER = "general/logger"

MAX_MESSAGE_BYTES = 990_000
"""This wire has no pages: a list comes whole, however long."""

FB300 = "FB300: undetermined node error"
FB301 = "FB301: Protocol error"

UNKNOWN_RESEARCHER = "<unknown>"
"""Whom a log record is for."""

PLAN_STATUS_UNKNOWN = "Not Registered"
PLAN_STATUS_ERROR = "Error"

REQUEST_COMMANDS = frozenset({"ping", "list", "search", "approval", "training-plan-status"})
REPLY_COMMANDS = frozenset({"pong", "list", "search", "approval", "training-plan-status", "train", "error"})
NOT_RUN_HERE = frozenset({"train", "secagg", "secagg-delete"})

_ABSENT_VERSION = "0"
_OURS = (1, 0, 0)
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}")
_MAX_ID = 256

M = TypeVar("M", bound=WireReply)

_encoder = msgspec.json.Encoder()
_decode_log_text = msgspec.json.Decoder(LogText).decode


def node_topic(node_id: str) -> str:
    """Return the topic on which one node is asked."""
    return f"general/{node_id}"


def encode(message: WireMessage | Mapping[str, Any]) -> bytes:
    """Return the JSON bytes of a message, given with or without its class.

    Raises InvalidMessageError when they are too many for one.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_MESSAGE_BYTES:
        raise InvalidMessageError(
            f"a message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}",
            code=ErrorCode.TOO_LARGE.value,
        )
    return payload


def decode_request(payload: bytes) -> AnyRequest:
    """Decode what a researcher sends. Raises InvalidMessageError, with the code of what is wrong."""
    document = _document(payload)
    command = document.get("command")
    if isinstance(command, str) and command in NOT_RUN_HERE:
        raise InvalidMessageError(
            f"command {command!r} is not run by this node on this wire", code=ErrorCode.UNSUPPORTED.value
        )
    request: AnyRequest = _converted(document, AnyRequest, REQUEST_COMMANDS)
    return request


def decode_reply(payload: bytes, *, researcher_id: str) -> AnyReply | None:
    """Decode what a node answers to this researcher; None when it is meant for another.

    Raises InvalidMessageError.
    """
    document = _document(payload)
    if document.get("researcher_id") != researcher_id:
        return None
    reply: AnyReply = _converted(document, AnyReply, REPLY_COMMANDS)
    return _from_usable_node(reply)


def decode_scalar(payload: bytes) -> WireScalar:
    """Decode values of a training loop. Raises InvalidMessageError."""
    scalar: WireScalar = _converted(_document(payload), WireScalar, frozenset({"add_scalar"}))
    return _from_usable_node(scalar)


def decode_log(payload: bytes) -> tuple[Log, LogText]:
    """Decode a log record and the JSON text in it. Raises InvalidMessageError."""
    log: Log = _converted(_document(payload), Log, frozenset({"log"}))
    try:
        text = _decode_log_text(log.msg)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise InvalidMessageError(f"the text of a log record is not as agreed: {_one_line(str(error))}") from None
    return _from_usable_node(log), text


def encode_log_text(text: LogText) -> str:
    """Return the JSON text that a log record carries."""
    return _encoder.encode(text).decode()


def sender(payload: bytes) -> str | None:
    """Return who sent a request that cannot be served, as far as it says so."""
    try:
        researcher_id = decode_document(payload).get("researcher_id")
    except InvalidMessageError:
        return None
    return researcher_id if isinstance(researcher_id, str) and 0 < len(researcher_id) <= _MAX_ID else None


def answering_node(payload: bytes, *, researcher_id: str) -> str | None:
    """Return which node sent this researcher a reply that cannot be read, as far as it says so."""
    try:
        document = decode_document(payload, max_bytes=MAX_MESSAGE_BYTES)
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
    document = decode_document(payload, max_bytes=MAX_MESSAGE_BYTES)
    version = document.get("protocol_version", _ABSENT_VERSION)
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise InvalidMessageError(
            f"protocol_version {str(version)[:40]!r} is not a version", code=ErrorCode.VERSION.value
        )
    numbers = [int(number) for number in version.split(".")]
    theirs = (*numbers, *[0] * (3 - len(numbers)))
    # An older minor of our major is understood; a newer one may hold fields that we do not know.
    if theirs[0] != _OURS[0] or theirs > _OURS:
        raise InvalidMessageError(
            f"message speaks protocol version {version} and this side speaks {PROTOCOL_VERSION}",
            code=ErrorCode.VERSION.value,
        )
    return document


def _converted(document: dict[str, Any], kind: Any, commands: frozenset[str]) -> Any:
    if "command" not in document:
        raise InvalidMessageError("the message names no command")
    command = document["command"]
    if not isinstance(command, str) or command not in commands:
        raise InvalidMessageError(
            f"command {str(command)[:64]!r} is not one of {', '.join(sorted(commands))}",
            code=ErrorCode.UNKNOWN_COMMAND.value,
        )
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise InvalidMessageError(_one_line(str(error))) from None


def _from_usable_node(message: M) -> M:
    checked_party(message.node_id, what="node id")
    return message


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
