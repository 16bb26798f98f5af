"""Reading a recording, a few rows at a time: as batches, or as the rows of the file."""

from __future__ import annotations

import functools
import itertools
import logging
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.sample import Batch
from fedmon.common.metrics.series import metric_name
from fedmon.common.store.recording_file import LARGEST, Key, RecordingFile
from fedmon.common.store.recording_format import Chooser, RowPlace, UnreadableRowError, decode, series_names

logger = logging.getLogger(__name__)

_ROWS = 16
"""Most rows held at once: under 1 MiB for most nodes."""
_HEAD_BYTES = 4096
"""The names of some hundred series fit in."""
_FETCHED = 500
_KNOWN_SERIES = 10_000
CALENDAR = (0.0, 253_402_300_799.0)
"""The Unix times that have a date, from 1970 to 9999: samples of others count as damaged."""
_SOURCES = (
    "SELECT id, node_id, stream, boot FROM source WHERE node_id = ifnull(?, node_id) AND stream = ifnull(?, stream) "
    "AND boot = ifnull(?, boot) ORDER BY node_id, stream, boot"
)
_BATCHES = (
    "SELECT first_seq, last_seq, body FROM batch WHERE source = ? AND last_seq >= ? AND first_seq <= ? "
    "AND high_t >= ifnull(?, high_t) AND low_t <= ifnull(?, low_t) ORDER BY last_seq LIMIT ?"
)


class RowSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a read; a limit that is None excludes nothing."""

    first_seq: int = 0
    last_seq: int = LARGEST
    since_t: float | None = None
    until_t: float | None = None
    series: Chooser | None = None


def read_rows(
    file: RecordingFile, of: tuple[str | None, str | None, int | None], selection: RowSelection
) -> Iterator[Batch]:
    """Return the selected samples ``of`` a node, stream and boot, by these and number. Raises StorageError."""
    for source, node_id, stream, boot in file.rows(_SOURCES, of):
        position = selection.first_seq
        for first, last, body in raw_rows(file, source, selection):
            try:
                batches = decode(body, RowPlace((node_id, stream, boot), first, last), wanted=selection.series)
            except UnreadableRowError as error:
                logger.warning("left out: %s", error)
                continue
            for batch in batches:
                # A row may begin before what is wanted, or before what was read when rows were merged meanwhile.
                if batch.last_seq >= position and batch.seq <= selection.last_seq:
                    part = batch.part(position, selection.last_seq)
                    position = part.last_seq + 1
                    yield from timed(part, selection.since_t)


def raw_rows(file: RecordingFile, source: int | None, selection: RowSelection) -> Iterator[tuple[int, int, bytes]]:
    """Return first and last number and body of the rows of one stream, in order. Raises StorageError."""
    position = selection.first_seq
    while position <= selection.last_seq:
        # Each query sees the file as it is then, and no reader holds up the writer's log.
        rows = file.rows(_BATCHES, (source, position, selection.last_seq, selection.since_t, selection.until_t, _ROWS))
        yield from rows
        if len(rows) < _ROWS:
            return
        position = rows[-1][1] + 1


def timed(batch: Batch, since_t: float | None) -> Iterator[Batch]:
    """Return the parts of a batch from a time on; several where the clock was set in between."""
    if since_t is None:
        yield batch
        return
    at = batch.seq
    for is_inside, group in itertools.groupby(t >= since_t for t in batch.t):
        length = sum(1 for _ in group)
        if is_inside:
            yield batch.part(at, at + length - 1)
        at += length


def chooser(metrics: Sequence[str] | None, *, unmatched: set[str] | None = None) -> Chooser | None:
    """Return a filter for series, by metric name or glob; None for all. Those that match leave ``unmatched``.

    Raises InvalidInputError for a bare text.
    """
    if metrics is None:
        return None
    if isinstance(metrics, str):
        raise InvalidInputError(f"metrics is {metrics!r}: give a list of names, such as [{metrics!r}]")

    @functools.lru_cache(_KNOWN_SERIES)
    def wanted(name: str) -> bool:
        names = (name, metric_name(name))
        found = [glob for glob in metrics if any(one == glob or fnmatchcase(one, glob) for one in names)]
        if unmatched:
            unmatched.difference_update(found)
        return bool(found)

    return wanted


class Reach(NamedTuple):
    """Which samples a row holds, and the earliest and latest Unix time among them, within the calendar."""

    first_seq: int
    last_seq: int
    low_t: float
    high_t: float


class RecordingRows:
    """Reads an open recording row by row; for one thread at a time. Every method raises StorageError."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file
        self._sources: dict[Key, int] = {}

    def holds(self, key: Key) -> bool:
        """Tell whether the recording knows a stream."""
        return self._source(key) is not None

    def rows(self, key: Key, selection: RowSelection) -> Iterator[tuple[int, int, bytes]]:
        """Return the rows with a sample of the selected numbers and, in some sample, times; see `raw_rows`."""
        return raw_rows(self._file, self._source(key), selection)

    def before(self, key: Key, seq: int) -> tuple[int, int] | None:
        """Return first and last number of the last row that begins before a sample; the sample may be in it."""
        source = self._source(key)
        for condition, order in (("last_seq >= ? AND first_seq < ?", "ASC"), ("last_seq < ? AND ? > 0", "DESC")):
            found = self._file.rows(
                f"SELECT first_seq, last_seq FROM batch WHERE source = ? AND {condition} "  # noqa: S608
                f"ORDER BY last_seq {order} LIMIT 1",
                (source, seq, seq),
            )
            if found:
                return found[0]
        return None

    def reaches(self, key: Key) -> list[Reach]:
        """Return the extent of each row, in order; a row with damaged times has none."""
        found = self._file.rows(
            "SELECT first_seq, last_seq, low_t, high_t FROM batch WHERE source = ? ORDER BY last_seq",
            (self._source(key),),
        )
        # SQLite keeps any value, so damage may leave anything.
        timed = (row for row in found if isinstance(row[2], int | float) and isinstance(row[3], int | float))
        return [Reach(first, last, _dated(low_t), _dated(high_t)) for first, last, low_t, high_t in timed]

    def series(self, key: Key) -> dict[str, None]:
        """Return the series, in the order in which they came; a damaged row has none."""
        found: dict[str, None] = {}
        position, source = -1, self._source(key)
        seen: set[tuple[str, ...]] = set()
        while True:
            heads = self._file.rows(
                "SELECT last_seq, substr(body, 1, ?) FROM batch WHERE source = ? AND last_seq > ? "
                "ORDER BY last_seq LIMIT ?",
                (_HEAD_BYTES, source, position, _FETCHED),
            )
            for last, head in heads:
                names = self._names(source, last, head)
                if names not in seen:
                    seen.add(names)
                    found.update(dict.fromkeys(names))
            if len(heads) < _FETCHED:
                return found
            position = heads[-1][0]

    def _names(self, source: int | None, last_seq: int, head: bytes) -> tuple[str, ...]:
        try:
            names = series_names(head)
            if names is None:
                # By its number: the row may have been merged into a larger one meanwhile.
                bodies = self._file.rows(
                    "SELECT body FROM batch WHERE source = ? AND last_seq >= ? ORDER BY last_seq LIMIT 1",
                    (source, last_seq),
                )
                names = series_names(bodies[0][0]) if bodies else ()
        except (zlib.error, msgspec.DecodeError, ValueError, TypeError) as error:
            logger.debug("a row of a recording is damaged: %s", error)
            names = ()
        return names or ()

    def _source(self, key: Key) -> int | None:
        if key not in self._sources:
            sql = "SELECT id FROM source WHERE node_id = ? AND stream = ? AND boot = ?"
            self._sources.update((key, number) for (number,) in self._file.rows(sql, key))
        return self._sources.get(key)


def _dated(t: float) -> float:
    """Return the time of the calendar next to this one."""
    return min(max(t, CALENDAR[0]), CALENDAR[1])
