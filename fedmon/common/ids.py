"""Ids that are safe in topics, access lists and file names, and ids that sort by time."""

from __future__ import annotations

import datetime
import os
import re
import time
import uuid
from typing import NewType

from fedmon.common.errors import InvalidIdError

NodeId = NewType("NodeId", str)
ResearcherId = NewType("ResearcherId", str)
InstanceId = NewType("InstanceId", str)

MAIN_INSTANCE = InstanceId("main")
ALL_INSTANCES = InstanceId("all")
"""Topic level under which a decision reaches every instance of a researcher."""

RESERVED_IDS = frozenset({"nodes", "researcher", "monitoring", "logger", "status", "all"})
"""Words that are topic levels of the wire; a party with such an id could not be told from them."""

JOB_PREFIX = "job-"
"""How the node id of each host of a batch job begins, and at a broker with users no other."""

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def checked_id(text: str, *, what: str) -> str:
    """Return ``text`` when it can be a topic level on every broker.

    Raises InvalidIdError naming ``what`` and the allowed alphabet.
    """
    if not ID_PATTERN.fullmatch(text):
        raise InvalidIdError(f"{what} {text!r} is not usable: use 1 to 64 letters, digits, '_' or '-'")
    if text in RESERVED_IDS:
        raise InvalidIdError(f"{what} {text!r} is reserved; choose another than {', '.join(sorted(RESERVED_IDS))}")
    return text


def new_id() -> str:
    """Make a version 7 UUID: 48 bits of Unix milliseconds, then 74 random bits.

    Source: RFC 9562, section 5.7.
    """
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & ((1 << 48) - 1)) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF000 << 64) | 0x7000 << 64
    value = value & ~(0xC000 << 48) | 0x8000 << 48
    return str(uuid.UUID(int=value))


def made_at(message_id: str) -> datetime.datetime | None:
    """Return when a version 7 UUID was made by its maker's clock; None for any other id."""
    try:
        value = uuid.UUID(message_id)
    except ValueError:
        return None
    if value.version != 7:  # RFC 9562, section 5.7
        return None
    return datetime.datetime.fromtimestamp((value.int >> 80) / 1000, datetime.UTC)


def new_party_id(prefix: str) -> str:
    """Make an id such as ``node-3f9a1c2e`` for a party that was given none."""
    return f"{prefix}-{os.urandom(4).hex()}"
