"""Recordings whose rows are merged."""

from __future__ import annotations

from fedmon.common.store.recording import Recording


def compact(recording: Recording) -> None:
    """Merge every row that can be merged."""
    with Recording(recording.path, wall=lambda: 1e12) as later:  # when nothing was added for long
        while later.maintain():
            pass
