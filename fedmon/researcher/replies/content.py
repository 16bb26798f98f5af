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
    """A reply that was not taken; ``redelivered`` if a crash left open whether it was."""

    key: int
    command: str
    message: Keepable
    redelivered: bool = False


class StoredEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A kept message: its bytes, and the fields by which it is found; ``id`` is that of the request it answers."""

    payload: bytes
    command: str
    id: str
    foreign: bool = False
    redelivered: bool = False

    @classmethod
    def of(cls, message: Keepable, *, redelivered: bool = False) -> Self:
        """Make the entry of a message."""
        if isinstance(message, StoredDocument):
            command, payload = str(message.fields.get("command", "")), msgspec.json.encode(message.fields)
            return cls(payload=payload, command=command, id=message.id, foreign=True, redelivered=redelivered)
        command = str(message.__struct_config__.tag)
        return cls(payload=msgspec.json.encode(message), command=command, id=message.id, redelivered=redelivered)

    @classmethod
    def recovered(cls, stored: Mapping[str, Any], *, handed: bool) -> Self:
        """Read an entry from disk. Raises InvalidMessageError if it cannot be read."""
        payload = stored.get("payload")
        try:
            content = payload.encode() if isinstance(payload, str) else b""
            foreign, request_id = bool(stored.get("foreign")), str(stored.get("id", ""))
            return cls.of(_message(content, foreign=foreign, request_id=request_id), redelivered=handed)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidMessageError(f"it is no message: {error}") from None

    def stored(self) -> dict[str, Any]:
        """Return the document that is written to disk."""
        document: dict[str, Any] = {"payload": self.payload.decode()}
        return document | {"foreign": True, "id": self.id} if self.foreign else document

    def kept(self, key: int) -> KeptReply:
        """Return the message again."""
        message = _message(self.payload, foreign=self.foreign, request_id=self.id)
        return KeptReply(key=key, command=self.command, message=message, redelivered=self.redelivered)


def _message(payload: bytes, *, foreign: bool, request_id: str) -> Keepable:
    return StoredDocument.of(_decode_fields(payload), id=request_id) if foreign else _decode_reply(payload)
