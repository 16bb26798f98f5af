"""Arrays read straight from a recording are what `Recording.read` gives, value by value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.report.blocks import Block
from fedmon.report.source import Source
from tests.common.store.recordings import batch
from tests.report.tables import samples
from tests.support.compaction import compact

Flat = list[tuple[str, str, int, int, float, float, dict[str, float]]]

VALUES = st.one_of(
    st.none(),
    st.integers(-300, 300),
    st.integers(-(2**70), 2**70),
    st.floats(-1e300, 1e300),
    st.integers(-(10**9), 10**9).map(lambda number: number / 1000),
    st.integers(2**53 - 3, 2**53 + 3),
)
COLUMNS = st.one_of(st.lists(VALUES, min_size=40, max_size=40), VALUES.map(lambda value: [value] * 40))


def of_batches(batches: Iterable[Batch]) -> Flat:
    return [
        (
            *(one.node_id, one.stream, one.boot, one.seq + at, one.t[at], one.mono[at]),
            {name: float(column[at]) for name, column in one.columns.items() if column[at] is not None},  # type: ignore[arg-type]
        )
        for one in batches
        for at in range(len(one.t))
    ]


def of_blocks(blocks: Iterable[Block]) -> Flat:
    return [
        (
            *(one.node_id, one.stream, one.boot, one.seq + at, float(one.t[at]), float(one.mono[at])),
            {name: float(column[at]) for name, column in one.columns.items() if not math.isnan(column[at])},
        )
        for one in blocks
        for at in range(len(one.t))
    ]


@settings(max_examples=60)
@given(
    columns=st.lists(COLUMNS, min_size=1, max_size=4),
    lengths=st.lists(st.sampled_from([1, 2, 7, 10, 40]), min_size=1, max_size=4),
    gap=st.sampled_from([0, 0, 3]),
    is_compacted=st.booleans(),
    since=st.sampled_from([None, 5.0]),
)
def test_blocks_hold_what_read_gives(
    columns: list[list[float | None]],
    lengths: list[int],
    gap: int,
    is_compacted: bool,
    since: float | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("decoding") / "recording"
    seq, batches = 0, []
    for number, length in enumerate(lengths):
        moments = [seq + at * 1.001 for at in range(length)]
        named = {f"x{at}": column[:length] for at, column in enumerate(columns) if (at + number) % 3}
        batches.append(
            Batch(node_id="n", boot=1, stream="host", seq=seq, t=moments, mono=moments, columns=named, reasons={})
        )
        seq += length + gap
    with Recording(path) as recording:
        for one in batches:
            recording.append([one])
        if is_compacted:
            compact(recording)
        expected = of_batches(recording.read(since_t=since))

    with Source([path]) as source:
        actual = of_blocks(source.blocks(since_t=since))

    assert expected == actual


def test_reasons_of_nulls_and_series_that_come_and_go_change_no_value(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    with Recording(path) as recording:
        recording.append([batch(0, 600), batch(600, 35, boot=2), batch(0, 5, node="b"), batch(1000, 90)])
        odd = samples({"y": [None, 4], "x": [None, None]}, node="a", seq=600)
        recording.append([msgspec.structs.replace(odd, reasons={"y": "failed: busy"})])
        expected = of_batches(recording.read())
        wanted = of_batches(recording.read(series=lambda name: name.startswith("host_cpu")))

    with Source([path]) as source:
        assert expected == of_blocks(source.blocks())
        assert wanted == of_blocks(source.blocks(series=lambda name: name.startswith("host_cpu")))
        assert source.damaged == 0
