"""Values of programs: a name, a number, a moment, and never a wait."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.sample import Sample
from fedmon.common.metrics.series import split_series
from fedmon.common.metrics.table import metric_of
from fedmon.node.measure.publisher import MAX_NAME_CHARS, UserValues


class Kept:
    """Keeps what is published, with a clock that the test moves."""

    def __init__(self, **limits: Any) -> None:
        self.samples: list[Sample] = []
        self.streams: set[str] = set()
        self.now = 1000.0
        self.values = UserValues(self._take, wall=lambda: 1.7e9 + self.now, monotonic=lambda: self.now, **limits)

    def _take(self, stream: str, sample: Sample) -> None:
        self.streams.add(stream)
        self.samples.append(sample)


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_value_gets_both_clocks_its_step_and_its_job(kept: Kept) -> None:
    taken = kept.values.add_scalar("accuracy", 0.5, 3)
    kept.values.add_scalar("loss", 1, t=1.7e9 + 990, job="slurm-7")

    assert taken
    assert kept.streams == {"user"}
    assert kept.samples == [
        Sample(
            t=1.7e9 + 1000, mono=1000.0, values={'user_value{name="accuracy"}': 0.5, 'user_step{name="accuracy"}': 3}
        ),
        Sample(t=1.7e9 + 990, mono=990.0, values={'user_value{name="loss",job="slurm-7"}': 1.0}),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_a_loss_that_is_not_finite_is_an_event_and_no_error(kept: Kept, value: float) -> None:
    kept.values.add_scalar("loss", value, step=9)

    (sample,) = kept.samples
    assert sample.values == {'user_value{name="loss"}': None, 'user_step{name="loss"}': 9}
    assert sample.reasons['user_value{name="loss"}'].startswith("failed: not finite")


@pytest.mark.parametrize(
    ("name", "value", "extra", "said"),
    [
        *(("loss", value, {}, r"'loss' is .*not a number") for value in ("0.5", None, [1])),
        *((name, 1.0, {}, "the name of a value") for name in ("", "x" * (MAX_NAME_CHARS + 1), "\ud800")),
        *(("loss", 1.0, {"step": step}, "step") for step in (1.5, 2**60)),
        *(("loss", 1.0, {"t": t}, "t=") for t in (math.nan, -5.0)),
    ],
)
def test_a_value_name_step_or_time_that_cannot_be_used_is_refused_and_takes_nothing(
    kept: Kept, name: Any, value: Any, extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        kept.values.add_scalar(name, value, **extra)

    assert kept.samples == []


@pytest.mark.parametrize("value", [1, True, Decimal("0.5"), Fraction(1, 2)])
def test_every_kind_of_number_is_taken(kept: Kept, value: Any) -> None:
    kept.values.add_scalar("x", value)

    assert list(kept.samples[0].values.values()) == [float(value)]


@pytest.mark.parametrize("name", ['a "quoted" \\ name', "line\nbreak", "Größe/ε", "A-Round{x=1}", "x" * MAX_NAME_CHARS])
def test_any_text_is_a_name_and_comes_back_whole(kept: Kept, name: str) -> None:
    kept.values.add_scalar(name, 1.0)

    (key,) = kept.samples[0].values
    assert split_series(key) == ("user_value", {"name": name})
    assert metric_of(key) is not None


def test_a_flood_is_cut_and_counted_and_the_count_is_reported() -> None:
    kept = Kept(burst=10, per_s=5.0)

    taken = sum(kept.values.add_scalar("x", number) for number in range(100))
    kept.now += 1.0
    later = sum(kept.values.add_scalar("x", number) for number in range(100))

    assert (taken, later) == (10, 5)
    assert kept.values.dropped == 185
    assert kept.samples[9].values == {'user_value{name="x"}': 9.0}
    assert kept.samples[10].values["user_values_dropped_total"] == 90


def test_values_from_many_threads_are_all_there_in_the_order_of_their_times() -> None:
    samples: list[Sample] = []

    def slow_clock() -> float:
        now = time.monotonic()
        time.sleep(0.0)  # another thread goes on
        return now

    values = UserValues(lambda _stream, sample: samples.append(sample), monotonic=slow_clock)

    def report(name: str) -> None:
        for number in range(100):
            values.add_scalar(name, number)

    with ThreadPoolExecutor(8, initializer=threading.Barrier(8).wait) as threads:
        list(threads.map(report, "abcdefgh"))

    assert len(samples) == 800
    assert [sample.mono for sample in samples] == sorted(sample.mono for sample in samples)
