"""What a bounded recording drops while it is read is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.common.store.recording import Recording
from fedmon.report.source import Source, dropped_meanwhile, vanished
from tests.report.tables import recording, samples


def test_what_was_dropped_meanwhile_is_counted_and_what_came_is_not(tmp_path: Path) -> None:
    path = recording(tmp_path / "r", *(samples({"a": [float(at)] * 10}, seq=10 * at) for at in range(30)))

    with Source([path]) as before:
        with Recording(path, max_age_s=1.0) as store:
            store.append([samples({"a": [9.0] * 10}, seq=300)])
            while store.maintain(everything=True):
                pass
        with Source([path]) as now:
            gone, left = vanished(before, now), now.streams[0]

    assert gone == left.oldest_seq > 0


def test_nothing_is_gone_where_nothing_was_dropped(tmp_path: Path) -> None:
    path = recording(tmp_path / "r", samples({"a": [1.0, 2.0]}), samples({"a": [3.0]}, seq=5))

    with Source([path]) as before, Source([path]) as now:
        assert vanished(before, now) == 0


def test_an_export_of_which_nothing_is_left_fails(tmp_path: Path) -> None:
    path = recording(tmp_path / "r", *(samples({"a": [float(at)] * 10}, seq=10 * at) for at in range(3)))

    with Source([path]) as before:
        path.unlink()
        later = recording(tmp_path / "r", samples({"a": [1.0]}, seq=23))
        with pytest.raises(StorageError, match="dropped 29 samples while they were read"):
            dropped_meanwhile(before, [later], rows=0, expected=30)
        assert dropped_meanwhile(before, [later], rows=1, expected=30) == 29
        assert dropped_meanwhile(before, [later], rows=0, expected=0) == 29
