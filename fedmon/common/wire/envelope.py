"""Fields of every message of the wire, and the types that they share."""

from __future__ import annotations

import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL = "fedmon/1"

# Not $, which is also found before a newline at the end.
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
ShortText = Annotated[str, Meta(max_length=256)]
LongText = Annotated[str, Meta(max_length=16_384)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Utc = Annotated[datetime.datetime, Meta(tz=True)]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="command"):
    """Fields of every message; ``command`` is the tag of the class."""

    protocol_version: str = PROTOCOL


class Request(Message, frozen=True, kw_only=True):
    """The envelope of a request; a reply echoes id, session and sequence.

    ``node_id`` names the one node that a directed command is for; null in a broadcast.
    """

    researcher_id: Id
    node_id: Id | None = None
    instance: Id = "main"
    id: ShortText
    session: ShortText
    sequence: Count
    expires: Utc


class Reply(Message, frozen=True, kw_only=True):
    """The envelope of a reply."""

    node_id: Id
    researcher_id: Id
    id: ShortText
    session: ShortText
    sequence: Count
    success: bool = True
