"""Reading samples back out of a recording, a few rows at a time."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.batch import Batch
from fedmon.common.metrics.series import metric_name
from fedmon.common.store.recording_body import Chooser, Place, UnreadableRowError, decode
from fedmon.common.store.recording_file import RecordingFile

logger = logging.getLogger(__name__)

LARGEST = 2**63 - 1
"""The largest number of a sample, as on the wire."""
_ROWS = 16
"""So many rows are held at once: under 1 MiB for most nodes."""
_SOURCES = (
    "SELECT id, node_id, stream, boot FROM source WHERE (?1 IS NULL OR node_id = ?1) AND (?2 IS NULL OR stream = ?2) "
    "AND (?3 IS NULL OR boot = ?3) ORDER BY node_id, stream, boot"
)
_BATCHES = (
    "SELECT first_seq, last_seq, body FROM batch WHERE source = ?1 AND last_seq >= ?2 AND first_seq <= ?3 "
    "AND (?4 IS NULL OR high_t >= ?4) AND (?5 IS NULL OR low_t <= ?5) ORDER BY last_seq LIMIT ?6"
)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What is read; a limit that is None excludes nothing."""

    node_id: str | None = None
    boot: int | None = None
    stream: str | None = None
    first_seq: int = 0
    last_seq: int = LARGEST
    since_t: float | None = None
    until_t: float | None = None
    metrics: tuple[str, ...] | None = None
    series: Chooser | None = None

    def __post_init__(self) -> None:
        """Refuse what no recording can hold. Raises InvalidInputError."""
        for what, text in (("node", self.node_id), ("stream", self.stream)):
            if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
                raise InvalidInputError(f"{what} {text!r} holds half a character, and is the name of none")


def read_rows(file: RecordingFile, selection: Selection) -> Iterator[Batch]:
    """Return the selected samples, by node, stream, boot and number. Raises StorageError."""
    wanted = chooser(selection.metrics, selection.series)
    for source, node_id, stream, boot in sources(file, selection):
        position = selection.first_seq
        for first, last, body in raw_rows(file, source, selection):
            place = Place(node_id=node_id, boot=boot, stream=stream, first_seq=first, last_seq=last)
            try:
                batches = decode(body, place, wanted=wanted)
            except UnreadableRowError as error:
                logger.warning("left out: %s", error)
                continue
            for batch in batches:
                # A row may begin before what is wanted, or before what was read when rows were merged meanwhile.
                if batch.last_seq >= position and batch.seq <= selection.last_seq:
                    part = batch.part(position, selection.last_seq)
                    position = part.last_seq + 1
                    if selection.metrics is None or part.columns:
                        yield from _timed(part, selection.since_t, selection.until_t)


def sources(file: RecordingFile, selection: Selection) -> list[tuple[int, str, str, int]]:
    """Return key, node, stream and boot of what is selected, in order. Raises StorageError."""
    return file.rows(_SOURCES, (selection.node_id, selection.stream, selection.boot))


def raw_rows(file: RecordingFile, source: int, selection: Selection) -> Iterator[tuple[int, int, bytes]]:
    """Return first and last number and body of the rows of one stream, in order. Raises StorageError."""
    position = selection.first_seq
    while position <= selection.last_seq:
        # Each query sees the file as it is then, and no reader holds up the log of who writes.
        rows = file.rows(_BATCHES, (source, position, selection.last_seq, selection.since_t, selection.until_t, _ROWS))
        yield from rows
        if len(rows) < _ROWS:
            return
        position = rows[-1][1] + 1


def _timed(batch: Batch, since_t: float | None, until_t: float | None) -> Iterator[Batch]:
    """Return the parts of a batch between two times; several where the clock was set in between."""
    low, high = min(batch.t), max(batch.t)
    if (since_t is None or low >= since_t) and (until_t is None or high <= until_t):
        yield batch
        return
    inside = [(since_t is None or t >= since_t) and (until_t is None or t <= until_t) for t in batch.t]
    at = batch.seq
    for is_inside, group in itertools.groupby(inside):
        length = sum(1 for _ in group)
        if is_inside:
            yield batch.part(at, at + length - 1)
        at += length


def chooser(metrics: Sequence[str] | None, series: Chooser | None = None) -> Chooser | None:
    """Return what says yes to the series of metrics, by name or glob, that ``series`` says yes to; None for all."""
    if metrics is None:
        return series
    known: dict[str, bool] = {}

    def wanted(name: str) -> bool:
        answer = known.get(name)
        if answer is None:
            names = (name, metric_name(name))
            answer = any(one == glob or fnmatchcase(one, glob) for glob in metrics for one in names)
            answer = known[name] = answer and (series is None or series(name))
        return answer

    return wanted
