"""What a recording holds of each stream, in memory: asked at every batch, and read from the file's index once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.seq_ranges import SeqRanges

Key = tuple[str, str, int]
"""Node, stream, boot: in this order because streams are read in it."""


@dataclasses.dataclass(kw_only=True)
class Stream:
    """One stream of one boot of one node, as it lies in the file.

    Samples below ``floor_seq`` were dropped and do not come back. ``oldest_mono`` and ``newest_mono`` are the
    monotonic times of the last sample of the oldest and of the newest row; ``kept`` is the age clock when the newest
    was stored. Rows below ``compacted_to`` are as large as they should be.
    """

    key: Key
    source: int
    floor_seq: int = 0
    stored: SeqRanges = dataclasses.field(default_factory=SeqRanges)
    lost: SeqRanges = dataclasses.field(default_factory=SeqRanges)
    oldest_t: float = 0.0
    last_t: float = 0.0
    oldest_mono: float = 0.0
    newest_mono: float = 0.0
    kept: float = 0.0
    compacted_to: int = 0
    joined_to: int = 0

    @property
    def taken(self) -> float:
        """When the oldest row was measured, on the age clock.

        The difference of monotonic times is right within one boot of a node, whatever its wall clock did.
        """
        return self.kept - max(0.0, self.newest_mono - self.oldest_mono)


class Streams:
    """All streams of a file, each read when it is first asked for, and again when another process has written."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file
        self._streams: dict[Key, Stream] = {}
        self._complete = False
        self._version = -1

    def forget(self) -> None:
        """Read everything again when it is asked for."""
        self._streams.clear()
        self._complete = False

    def refresh(self) -> None:
        """Forget what another connection may have changed. Raises StorageError."""
        version = self._file.pragma("data_version")
        if version != self._version:
            self.forget()
            self._version = version

    def all(self) -> list[Stream]:
        """Return every stream, by node, stream and boot. Raises StorageError."""
        return sorted(self.each(), key=lambda stream: stream.key)

    def each(self) -> Iterable[Stream]:
        """Return every stream, in any order. Raises StorageError."""
        if not self._complete:
            for source, node_id, stream, boot, floor in self._file.rows(
                "SELECT id, node_id, stream, boot, floor_seq FROM source"
            ):
                if (node_id, stream, boot) not in self._streams:
                    self._load(source, (node_id, stream, boot), floor)
            self._complete = True
        return self._streams.values()

    def find(self, key: Key) -> Stream | None:
        """Return one stream, or None when the file knows nothing of it. Raises StorageError."""
        found = self._streams.get(key)
        if found is None and not self._complete:
            node_id, stream, boot = key
            for source, floor in self._file.rows(
                "SELECT id, floor_seq FROM source WHERE node_id = ? AND stream = ? AND boot = ?",
                (node_id, stream, boot),
            ):
                found = self._load(source, key, floor)
        return found

    def make(self, key: Key) -> Stream:
        """Return one stream, begun when it is new; inside a transaction. Raises StorageError."""
        found = self.find(key)
        if found is None:
            node_id, stream, boot = key
            source = self._file.run(
                "INSERT INTO source (node_id, stream, boot) VALUES (?, ?, ?)", (node_id, stream, boot)
            )
            found = self._streams[key] = Stream(key=key, source=source)
        return found

    def update_ends(self, stream: Stream) -> None:
        """Read again what the oldest and newest rows of a stream say. Raises StorageError."""
        sql = "SELECT first_t, last_t, last_mono, kept FROM batch WHERE source = ? ORDER BY last_seq"
        oldest = self._file.rows(f"{sql} LIMIT 1", (stream.source,))
        newest = self._file.rows(f"{sql} DESC LIMIT 1", (stream.source,))
        if oldest and newest:
            stream.oldest_t, _, stream.oldest_mono, _ = oldest[0]
            _, stream.last_t, stream.newest_mono, stream.kept = newest[0]

    def _load(self, source: int, key: Key, floor: int) -> Stream:
        stored = self._file.rows("SELECT first_seq, last_seq FROM batch WHERE source = ? ORDER BY last_seq", (source,))
        lost = self._file.rows("SELECT first_seq, last_seq FROM lost WHERE source = ? ORDER BY first_seq", (source,))
        stream = Stream(key=key, source=source, floor_seq=floor, stored=SeqRanges(stored), lost=SeqRanges(lost))
        self.update_ends(stream)
        self._streams[key] = stream
        return stream
