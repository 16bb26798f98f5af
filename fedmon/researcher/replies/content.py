"""A kept message: as bytes in memory and on disk, and decoded again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import AnyReply, Result

# Kept messages were checked when they came, and may be longer than a message of our own wire.
_decode_reply = msgspec.json.Decoder(AnyReply).decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


class StoredDocument(Reply, frozen=True, kw_only=True):
    """A message of another wire, kept as it came; its envelope is empty if it answers no request."""

    fields: dict[str, Any]
    researcher_id: str = ""
    id: str = ""
    session: str = ""
    sequence: int = 0

    @classmethod
    def of(cls, fields: dict[str, Any], **envelope: Any) -> Self:
        """Make the document of a message, of the node that it names."""
        return cls(fields=fields, **({"node_id": str(fields.get("node_id", ""))} | envelope))


Keepable = Reply | Result


class KeptReply(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was not taken; ``redelivered`` if a crash left open whether it was."""

    key: int
    command: str
    message: Keepable
    size_bytes: int
    redelivered: bool = False


def stored(message: Keepable) -> dict[str, Any]:
    """Return the document that is written to disk."""
    if isinstance(message, StoredDocument):
        return {"payload": msgspec.json.encode(message.fields).decode(), "foreign": True, "id": message.id}
    return {"payload": msgspec.json.encode(message).decode()}


def kept(key: int, message: Keepable, document: Mapping[str, Any], *, redelivered: bool = False) -> KeptReply:
    """Return a message with the key of its document."""
    fields = message.fields if isinstance(message, StoredDocument) else {"command": message.__struct_config__.tag}
    size_bytes = len(document["payload"].encode())
    command = str(fields.get("command", ""))
    return KeptReply(key=key, command=command, message=message, size_bytes=size_bytes, redelivered=redelivered)


def recovered(document: Mapping[str, Any]) -> Keepable:
    """Read a message from disk. Raises InvalidMessageError if it cannot be read."""
    payload = document.get("payload")
    try:
        content = payload.encode() if isinstance(payload, str) else b""
        if document.get("foreign"):
            return StoredDocument.of(_decode_fields(content), id=str(document.get("id", "")))
        reply: Keepable = _decode_reply(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidMessageError(f"not a message: {error}") from None
    return reply
