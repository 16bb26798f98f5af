"""What a recording keeps beside samples: what was lost, what happened, and what is known of the nodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.recording_streams import Stream

logger = logging.getLogger(__name__)

DROPPED_HERE = "dropped by a bound of this recording"


class LostRange(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that will never be there."""

    first_seq: int
    last_seq: int
    reason: str


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at Unix time ``t``."""

    node_id: str
    boot: int
    stream: str
    t: float
    text: str


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node since one of its boots."""

    node_id: str
    boot: int
    document: dict[str, Any]


def add_lost(file: RecordingFile, source: int, first_seq: int, last_seq: int, reason: str) -> None:
    """Keep that samples are lost; inside a transaction. Raises StorageError."""
    file.run(
        "INSERT OR REPLACE INTO lost (source, first_seq, last_seq, reason) VALUES (?, ?, ?, ?)",
        (source, first_seq, last_seq, reason),
    )


def lost_ranges(file: RecordingFile, stream: Stream) -> list[LostRange]:
    """Return what is lost of a stream, by number, without what came after all. Raises StorageError."""
    dropped = [LostRange(first_seq=0, last_seq=stream.floor_seq - 1, reason=DROPPED_HERE)] if stream.floor_seq else []
    rows = file.rows(
        "SELECT first_seq, last_seq, reason FROM lost WHERE source = ? AND last_seq >= ? ORDER BY first_seq",
        (stream.source, stream.floor_seq),
    )
    return dropped + [
        LostRange(first_seq=first, last_seq=last, reason=reason)
        for low, high, reason in rows
        for first, last in stream.stored.absent(max(low, stream.floor_seq), high)
    ]


def add_description(file: RecordingFile, node_id: str, boot: int, document: Mapping[str, Any]) -> None:
    """Keep what is known of a node; inside a transaction. Raises StorageError."""
    file.run(
        "INSERT OR REPLACE INTO description (node_id, boot, document) VALUES (?, ?, ?)",
        (node_id, boot, msgspec.json.encode(dict(document)).decode()),
    )


def descriptions(file: RecordingFile, node_id: str | None) -> list[Description]:
    """Return what is known of one node or of all, by node and boot. Raises StorageError."""
    rows = file.rows(
        "SELECT node_id, boot, document FROM description WHERE ?1 IS NULL OR node_id = ?1 ORDER BY node_id, boot",
        (node_id,),
    )
    found = []
    for node, boot, text in rows:
        try:
            document = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, TypeError) as error:
            # The samples are worth reading without it.
            logger.warning("left out: what is known of node %s since boot %s is damaged: %s", node, boot, error)
            continue
        found.append(Description(node_id=node, boot=boot, document=document))
    return found


def add_mark(file: RecordingFile, source: int, t: float, text: str) -> None:
    """Keep that something happened; inside a transaction. Raises StorageError."""
    file.run("INSERT INTO mark (source, t, text) VALUES (?, ?, ?)", (source, t, text))


def marks(file: RecordingFile, node_id: str | None) -> list[Mark]:
    """Return what happened on one node or on all, in the order of writing. Raises StorageError."""
    rows = file.rows(
        "SELECT node_id, boot, stream, t, text FROM mark JOIN source ON source.id = mark.source "
        "WHERE ?1 IS NULL OR node_id = ?1 ORDER BY mark.id",
        (node_id,),
    )
    return [
        Mark(node_id=node, boot=boot, stream=stream, t=t, text=text)
        for node, boot, stream, t, text in rows
        # SQLite keeps what it is given: after damage there may be anything.
        if isinstance(t, int | float) and isinstance(text, str)
    ]
