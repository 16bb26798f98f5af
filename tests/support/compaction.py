"""Recordings whose rows are merged."""

from __future__ import annotations

from fedmon.common.store.recording import Recording


def compact(recording: Recording) -> None:
    """Merge every row that can be merged."""
    while recording.maintain(everything=True):
        pass
