from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import pytest

from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant, Sample
from fedmon.node.collectors import host_collectors
from fedmon.node.collectors.base import CollectorUnavailableError, Reading, Why
from fedmon.node.sampler import Sampler


class Scripted:
    """A collector whose readings are written down; the last one is repeated."""

    def __init__(self, name: str, *readings: Mapping[str, float | None] | Exception) -> None:
        self.name = name
        self._readings = list(readings)
        self.instants: list[Instant] = []

    def collect(self, now: Instant) -> Reading:
        self.instants.append(now)
        reading = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(reading, Exception):
            raise reading
        return Reading(reading)

    def probe(self) -> Mapping[str, str | None]:
        return {f"{self.name}_metric": None}


class Samples:
    """Keeps samples and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.taken: list[Sample] = []
        self._arrived = threading.Condition()

    def __call__(self, sample: Sample) -> None:
        with self._arrived:
            self.taken.append(sample)
            self._arrived.notify_all()

    def wait_for(self, count: int, *, timeout_s: float = 20.0) -> list[Sample]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.taken) >= count, timeout_s), (
                f"only {len(self.taken)} samples"
            )
            return self.taken[:count]


class Clock:
    """The monotonic clock, which remembers when it was first read and can be put forward."""

    def __init__(self) -> None:
        self.start: float | None = None
        self._ahead_s = 0.0

    def __call__(self) -> float:
        now = time.monotonic() + self._ahead_s
        if self.start is None:
            self.start = now
        return now

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds


class Slow:
    """A collector that takes a written number of seconds of the clock that it was given."""

    name = "slow"

    def __init__(self, clock: Clock, *, seconds: list[float]) -> None:
        self._clock, self._seconds = clock, seconds

    def collect(self, _now: Instant) -> Reading:
        if self._seconds:
            self._clock.advance(self._seconds.pop(0))
        return Reading({"a": 1.0})

    def probe(self) -> Mapping[str, str | None]:
        return {"a": None}


def ignore(_sample: Sample) -> None:
    """Take no notice."""


def test_all_collectors_of_a_tick_share_one_instant() -> None:
    one, two = Scripted("one", {"a": 1.0}), Scripted("two", {"b": 2.0})
    sampler = Sampler([one, two], interval_s=5.0, on_sample=ignore)

    sample = sampler.sample()

    assert sample.values == {"a": 1.0, "b": 2.0}
    assert one.instants == two.instants == [Instant(t=sample.t, mono=sample.mono)]


def test_no_sample_comes_before_its_tick() -> None:
    samples, clock = Samples(), Clock()

    with Sampler([Scripted("one", {"a": 1.0})], interval_s=0.2, on_sample=samples, monotonic=clock):
        taken = samples.wait_for(6)

    assert clock.start is not None
    for number, sample in enumerate(taken):
        assert sample.mono >= clock.start + number * 0.2 - 1e-6


def test_ticks_that_come_too_late_are_left_out_and_counted() -> None:
    samples, clock = Samples(), Clock()
    slow = Slow(clock, seconds=[0.0, 0.5])

    with Sampler([slow], interval_s=0.2, on_sample=samples, monotonic=clock) as sampler:
        taken = samples.wait_for(3)

    # the second tick, at 0.2 s or later, was busy for 0.5 s: those at 0.4 s and 0.6 s lay behind then
    assert clock.start is not None
    assert taken[2].mono >= clock.start + 0.8 - 1e-6
    assert (sampler.counts()["agent_ticks_missed_total"] or 0) >= 2
    assert sampler.overruns >= 1


def test_a_failing_collector_leaves_gaps_with_a_reason_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    flaky = Scripted("flaky", {"a": 1.0, "b": 2.0}, RuntimeError("sensor\ngone"), ValueError("x"), {"a": 3.0, "b": 4.0})
    sampler = Sampler([flaky, Scripted("steady", {"c": 5.0})], interval_s=5.0, on_sample=ignore)
    caplog.set_level(logging.INFO)

    taken = [sampler.sample() for _ in range(4)]

    assert [sample.values for sample in taken] == [
        {"a": 1.0, "b": 2.0, "c": 5.0},
        {"a": None, "b": None, "c": 5.0},
        {"a": None, "b": None, "c": 5.0},
        {"a": 3.0, "b": 4.0, "c": 5.0},
    ]
    assert taken[1].reasons == {
        "a": "failed: RuntimeError: sensor gone",
        "b": "failed: RuntimeError: sensor gone",
    }
    assert taken[3].reasons == {}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_collector_that_never_worked_is_absent_and_the_report_says_why() -> None:
    broken = Scripted("broken", CollectorUnavailableError(Why.NO_PERMISSION, "/sys/x"))
    sampler = Sampler([broken, Scripted("good", {"good_metric": 1.0})], interval_s=60.0, on_sample=ignore)

    with sampler:
        sample = sampler.sample()
        report = sampler.capabilities()

    assert sample.values == {"good_metric": 1.0}
    assert report == {"broken_metric": "no permission: /sys/x", "good_metric": None}
    assert sampler.metrics() == ["good_metric"]


def test_a_collector_that_cannot_even_be_probed_does_not_stop_the_start() -> None:
    class Unprobed(Scripted):
        def probe(self) -> Mapping[str, str | None]:
            raise OSError("no such bus")

    samples = Samples()
    with Sampler([Unprobed("bus", {"a": 1.0})], interval_s=60.0, on_sample=samples) as sampler:
        samples.wait_for(1)

        assert sampler.capabilities() == {"bus": "failed: OSError: no such bus"}


def test_a_receiver_that_fails_loses_its_sample_and_nothing_else() -> None:
    samples = Samples()

    def receive(sample: Sample) -> None:
        samples(sample)
        raise RuntimeError("receiver")

    with Sampler([Scripted("one", {"a": 1.0})], interval_s=0.2, on_sample=receive):
        samples.wait_for(3)


def test_a_shorter_interval_acts_at_once() -> None:
    samples, clock = Samples(), Clock()

    with Sampler([Scripted("one", {"a": 1.0})], interval_s=60.0, on_sample=samples, monotonic=clock) as sampler:
        samples.wait_for(1)
        waited = Deadline(60.0)
        sampler.set_interval(0.2)
        taken = samples.wait_for(4)

    assert waited.elapsed_s() < 20.0
    assert clock.start is not None
    for number, sample in enumerate(taken):
        assert sample.mono >= clock.start + number * 0.2 - 1e-6
    assert sampler.interval_s == 0.2


def test_setting_the_same_interval_again_does_not_disturb_the_grid() -> None:
    samples, clock = Samples(), Clock()

    with Sampler([Scripted("one", {"a": 1.0})], interval_s=0.5, on_sample=samples, monotonic=clock) as sampler:
        samples.wait_for(1)
        for _ in range(100):
            sampler.set_interval(0.5)
        second = samples.wait_for(2)[1]

    assert clock.start is not None
    assert second.mono >= clock.start + 0.5 - 1e-6


def test_stopping_does_not_wait_for_the_next_tick() -> None:
    samples = Samples()
    sampler = Sampler([Scripted("one", {"a": 1.0})], interval_s=3600.0, on_sample=samples)
    sampler.start()
    samples.wait_for(1)

    sampler.stop(timeout_s=20.0)

    assert "fedmon-sampler" not in [thread.name for thread in threading.enumerate()]
    assert sampler.ticks == 1


@pytest.mark.parametrize("interval_s", [0.19, 0.0, -1.0, float("nan")])
def test_an_interval_below_the_limit_is_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match=r"use 0\.2 s or more"):
        Sampler([], interval_s=interval_s, on_sample=ignore)


def test_the_real_collectors_run_together_and_count_their_own_cost() -> None:
    samples = Samples()
    collectors = host_collectors(counts=lambda: sampler.counts())  # noqa: PLW0108 - there is no sampler yet
    sampler = Sampler(collectors, interval_s=0.2, on_sample=samples)

    with sampler:
        first, second = samples.wait_for(2)
        report = sampler.capabilities()

    assert first.values["host_cpu_busy_ratio"] is None
    assert first.reasons["host_cpu_busy_ratio"] == "first sample"
    assert first.reasons["agent_collect_seconds"] == "first sample"
    assert (second.values["agent_collect_seconds"] or 0) > 0
    assert report["host_memory_total_bytes"] is None
    assert report["agent_collect_seconds"] is None
