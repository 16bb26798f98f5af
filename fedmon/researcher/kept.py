"""One message that nobody has taken yet: as bytes in memory and on disk, and as a message again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import AnyReply, Result

# What is kept was checked when it came, and may be longer than a message of our own wire.
_decode_reply = msgspec.json.Decoder(AnyReply).decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the words of another wire, kept as it came."""

    fields: dict[str, Any]

    @property
    def id(self) -> str:
        """No id: it answers no request of ours."""
        return ""

    @property
    def node_id(self) -> str:
        """Who sent it, as far as it says so."""
        return str(self.fields.get("node_id", ""))


Keepable = Reply | Result | Document


class KeptReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that nobody had taken; ``redelivered`` when a crash left open whether somebody had."""

    key: int
    command: str
    message: Keepable
    redelivered: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A kept message: its bytes, and what it is found by; ``id`` is that of the request which it answers."""

    payload: bytes
    command: str
    id: str
    foreign: bool = False
    redelivered: bool = False

    @classmethod
    def of(cls, message: Keepable, *, redelivered: bool = False) -> Self:
        """Make the entry of a message."""
        if isinstance(message, Document):
            command, payload = str(message.fields.get("command", "")), msgspec.json.encode(message.fields)
            return cls(payload=payload, command=command, id="", foreign=True, redelivered=redelivered)
        command = str(message.__struct_config__.tag)
        return cls(payload=msgspec.json.encode(message), command=command, id=message.id, redelivered=redelivered)

    @classmethod
    def recovered(cls, stored: Mapping[str, Any], *, handed: bool) -> Self:
        """Read an entry from disk. Raises InvalidMessageError for what is none."""
        payload = stored.get("payload")
        try:
            content = payload.encode() if isinstance(payload, str) else b""
            return cls.of(_message(content, foreign=bool(stored.get("foreign"))), redelivered=handed)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidMessageError(f"it is no message: {error}") from None

    def stored(self) -> dict[str, Any]:
        """Return what is written to the disk."""
        document: dict[str, Any] = {"payload": self.payload.decode()}
        return document | {"foreign": True} if self.foreign else document

    def kept(self, key: int) -> KeptReply:
        """Return the message again."""
        message = _message(self.payload, foreign=self.foreign)
        return KeptReply(key=key, command=self.command, message=message, redelivered=self.redelivered)


def _message(payload: bytes, *, foreign: bool) -> Keepable:
    return Document(fields=_decode_fields(payload)) if foreign else _decode_reply(payload)
