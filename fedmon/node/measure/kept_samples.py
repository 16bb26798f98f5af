"""Reading what a node's recording holds, beside the one who writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.metrics.batch import Batch
from fedmon.common.store.recording import Recording


class KeptSamples:
    """Reads samples of one node with a connection of its own, opened when it is needed; for one thread."""

    def __init__(self, path: Path, *, node_id: str) -> None:
        self._path, self._node_id = path, node_id
        self._recording: Recording | None = None
        self._file = 0

    def read(
        self, stream: str, boot: int, first_seq: int, last_seq: int, *, wanted: Callable[[str], bool], file: int
    ) -> Iterator[Batch]:
        """Return samples in order, with the series that are ``wanted``; only as much is read as is taken.

        ``file`` counts the files that were begun at this path: a later one is opened anew. Raises StorageError.
        """
        if self._file != file:
            self.close()
        if self._recording is None:
            self._recording, self._file = Recording(self._path, read_only=True), file
        try:
            yield from self._recording.read(
                self._node_id, boot, stream, first_seq=first_seq, last_seq=last_seq, series=wanted
            )
        except StorageError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next reading opens one again."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None


def look_at(path: Path) -> None:
    """Read what a recording holds of each stream from the file itself. Raises StorageError when it is damaged."""
    with Recording(path, read_only=True) as recording:
        recording.extents()


def chosen(batch: Batch, wanted: Callable[[str], bool]) -> Batch:
    """Return a batch with the series that are ``wanted``."""
    columns = {series: column for series, column in batch.columns.items() if wanted(series)}
    reasons = {series: why for series, why in batch.reasons.items() if series in columns}
    return msgspec.structs.replace(batch, columns=columns, reasons=reasons)
