"""Recordings read together as arrays, and the growth of their counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedmon.report
from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.report.rates import Rates
from fedmon.report.source import Source


def batch(node_id: str, seq: int, values: list[float | None], *, boot: int = 1, stream: str = "host") -> Batch:
    moments = [100.0 + seq + number for number in range(len(values))]
    return Batch(
        node_id=node_id, boot=boot, stream=stream, seq=seq, t=moments, mono=moments, columns={"x_total": values}
    )


def recording(path: Path, *batches: Batch) -> Path:
    with Recording(path) as store:
        store.append(batches)
        for one in batches:
            store.describe(one.node_id, one.boot, {"hostname": f"{one.node_id}.example", "labels": {"env": "test"}})
    return path


def test_samples_that_are_in_two_recordings_come_once(tmp_path: Path) -> None:
    first = recording(tmp_path / "a", batch("n1", 0, [1, 2, 3]))
    second = recording(tmp_path / "b", batch("n1", 1, [2, 3, 4]), batch("n2", 0, [7]))

    with Source([first, second]) as source:
        blocks = list(source.blocks())
        names = [host.name for host in source.hosts]

    assert [(b.node_id, b.seq, b.columns["x_total"].tolist()) for b in blocks] == [
        ("n1", 0, [1, 2, 3]),
        ("n1", 3, [4]),
        ("n2", 0, [7]),
    ]
    assert names == ["n1.example", "n2.example"]
    assert source.span == (100.0, 103.0)


def test_rates_go_on_over_blocks_skip_gaps_and_do_not_invent_growth_at_a_restart(tmp_path: Path) -> None:
    path = recording(tmp_path / "a", batch("n1", 0, [10, None, 14]), batch("n1", 3, [16, 3, 5]))
    rates = Rates()

    with Source([path]) as source:
        grown = np.concatenate([rates.of(block, "x_total").per_second for block in source.blocks()])

    np.testing.assert_array_equal(grown, [np.nan, np.nan, 2, 2, np.nan, 2])


def test_no_recording_or_a_missing_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        Source([])
    with pytest.raises(StorageError, match=r"recording .* not found"):
        Source([tmp_path / "nothing"])


def test_each_public_name_is_there() -> None:
    assert [name for name in fedmon.report.__all__ if not callable(getattr(fedmon.report, name))] == []
