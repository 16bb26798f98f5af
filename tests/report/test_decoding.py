"""Arrays read straight from a recording are what `Recording.read` gives, value by value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.report.blocks import Block
from fedmon.report.source import Source
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


def flat(parts: Iterable[Batch | Block]) -> Flat:
    return [
        (
            *(one.node_id, one.stream, one.boot, one.seq + at, float(one.t[at]), float(one.mono[at])),
            {
                name: float(value)
                for name, column in one.columns.items()
                if (value := column[at]) is not None and not math.isnan(value)
            },
        )
        for one in parts
        for at in range(len(one.t))
    ]


@settings(max_examples=60)
@given(
    columns=st.lists(COLUMNS, min_size=1, max_size=4),
    lengths=st.lists(st.sampled_from([1, 2, 7, 10, 40]), min_size=1, max_size=4),
    gap=st.sampled_from([0, 0, 3]),
    is_compacted=st.booleans(),
    since=st.sampled_from([None, 5.0]),
    series=st.sampled_from([None, "x0".__eq__]),
)
def test_blocks_hold_what_read_gives(
    columns: list[list[float | None]],
    lengths: list[int],
    gap: int,
    is_compacted: bool,
    since: float | None,
    series: Callable[[str], bool] | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("decoding") / "recording"
    seq, batches = 0, []
    for number, length in enumerate(lengths):
        moments = [seq + at * 1.001 for at in range(length)]
        named = {f"x{at}": column[:length] for at, column in enumerate(columns) if (at + number) % 3}
        one = samples(named | {"y": [None] * length}, boot=1 + number // 3, seq=seq, t=moments, mono=moments)
        batches.append(msgspec.structs.replace(one, reasons={"y": "failed: busy"}))
        seq += length + gap
    with Recording(path) as recording:
        for one in batches:
            recording.append([one])
        if is_compacted:
            compact(recording)
        expected = flat(recording.read(since_t=since, series=series))

    with Source([path]) as source:
        actual = flat(source.blocks(since_t=since, series=series))
        assert source.damage.samples == 0

    assert expected == actual
