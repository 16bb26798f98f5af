"""The rows of a recording as they lie in the file, for readers that make something else of them than batches."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from fedmon.common.store.recording_body import series_names
from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.recording_reader import LARGEST, Selection, raw_rows
from fedmon.common.store.recording_streams import Key

logger = logging.getLogger(__name__)

_HEAD_BYTES = 4096
"""The names of some hundred series fit in."""
_FETCHED = 500


class Row(NamedTuple):
    """Samples ``first_seq`` to ``last_seq`` and their body."""

    first_seq: int
    last_seq: int
    body: bytes


_FIRST_T, _LAST_T = -62_135_596_800.0, 253_402_300_799.0
"""The years 1 to 9999."""


class Reach(NamedTuple):
    """Which samples a row holds, and the earliest and latest Unix time among them."""

    first_seq: int
    last_seq: int
    low_t: float
    high_t: float


class RecordingRows:
    """Reads rows of one recording; for one thread at a time. Every method raises StorageError."""

    def __init__(self, path: Path) -> None:
        self._file = RecordingFile(path, read_only=True)
        self._sources: dict[Key, int] = {}

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()

    def holds(self, key: Key) -> bool:
        """Tell whether the recording knows a stream."""
        return self._source(key) is not None

    def rows(
        self,
        key: Key,
        *,
        first_seq: int = 0,
        last_seq: int = LARGEST,
        since_t: float | None = None,
        until_t: float | None = None,
    ) -> Iterator[Row]:
        """Return the rows in which there is a sample with these numbers and, in some sample, these times; in order."""
        source = self._source(key)
        if source is not None:
            selection = Selection(first_seq=first_seq, last_seq=last_seq, since_t=since_t, until_t=until_t)
            yield from map(Row._make, raw_rows(self._file, source, selection))

    def before(self, key: Key, seq: int) -> Row | None:
        """Return the last row that begins before a sample; the sample may be in it."""
        source = self._source(key)
        for condition, order in (("last_seq >= ? AND first_seq < ?", "ASC"), ("last_seq < ? AND ? > 0", "DESC")):
            found = self._file.rows(
                f"SELECT first_seq, last_seq, body FROM batch WHERE source = ? AND {condition} "  # noqa: S608
                f"ORDER BY last_seq {order} LIMIT 1",
                (source, seq, seq),
            )
            if found:
                return Row._make(found[0])
        return None

    def reaches(self, key: Key) -> list[Reach]:
        """Return what each row holds, in order; a row whose times are damaged tells nothing."""
        found = self._file.rows(
            "SELECT first_seq, last_seq, low_t, high_t FROM batch WHERE source = ? ORDER BY last_seq",
            (self._source(key),),
        )
        return [Reach._make(row) for row in found if _is_time(row[2]) and _is_time(row[3])]

    def series(self, key: Key) -> dict[str, None]:
        """Return the series that there are, in the order in which they came; a damaged row has none."""
        found: dict[str, None] = {}
        position, source = -1, self._source(key)
        seen: set[tuple[str, ...]] = set()
        while True:
            heads = self._file.rows(
                "SELECT id, last_seq, substr(body, 1, ?) FROM batch WHERE source = ? AND last_seq > ? "
                "ORDER BY last_seq LIMIT ?",
                (_HEAD_BYTES, source, position, _FETCHED),
            )
            for number, _, head in heads:
                names = self._names(number, head)
                if names not in seen:
                    seen.add(names)
                    found.update(dict.fromkeys(names))
            if len(heads) < _FETCHED:
                return found
            position = heads[-1][1]

    def _names(self, number: int, head: bytes) -> tuple[str, ...]:
        try:
            names = series_names(head)
            if names is None:
                bodies = self._file.rows("SELECT body FROM batch WHERE id = ?", (number,))
                names = series_names(bodies[0][0]) if bodies else ()
        except (zlib.error, msgspec.DecodeError, ValueError, TypeError) as error:
            logger.debug("a row of a recording is damaged: %s", error)
            names = ()
        return names or ()

    def _source(self, key: Key) -> int | None:
        if key not in self._sources:
            node_id, stream, boot = key
            for (number,) in self._file.rows(
                "SELECT id FROM source WHERE node_id = ? AND stream = ? AND boot = ?", (node_id, stream, boot)
            ):
                self._sources[key] = number
        return self._sources.get(key)


def _is_time(value: object) -> bool:
    """Tell whether this is a time that a calendar has; SQLite keeps what it is given, so damage may leave anything."""
    return isinstance(value, int | float) and _FIRST_T <= value <= _LAST_T
