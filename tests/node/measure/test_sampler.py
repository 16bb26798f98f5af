from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant, Sample
from fedmon.node.collectors import host_collectors
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.measure.sampler import MAX_STRETCH, Sampler, SamplingCost, TickGrid


class Scripted:
    """A collector whose readings are written down; the last one is repeated."""

    def __init__(self, name: str, *readings: Mapping[str, float | None] | Exception, lane: Lane = Lane.FAST) -> None:
        self.name = name
        self.lane = lane
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


class Closing(Scripted):
    """A collector that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class Samples:
    """Keeps samples and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.taken: list[Sample] = []
        self._arrived = threading.Condition()

    def __call__(self, _stream: str, sample: Sample) -> None:
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
    lane = Lane.FAST

    def __init__(self, clock: Clock, *, seconds: list[float]) -> None:
        self._clock, self._seconds = clock, seconds

    def collect(self, _now: Instant) -> Reading:
        if self._seconds:
            self._clock.advance(self._seconds.pop(0))
        return Reading({"a": 1.0})

    def probe(self) -> Mapping[str, str | None]:
        return {"a": None}


def ignore(_stream: str, _sample: Sample) -> None:
    """Take no notice."""


def test_all_collectors_of_a_tick_share_one_instant() -> None:
    one, two = Scripted("one", {"a": 1.0}), Scripted("two", {"b": 2.0})
    sampler = Sampler({"host": [one, two]}, interval_s=5.0, on_sample=ignore)

    sample = sampler.sample()["host"]

    assert sample.values == {"a": 1.0, "b": 2.0}
    assert one.instants == two.instants == [Instant(t=sample.t, mono=sample.mono)]


def test_no_sample_comes_before_its_tick() -> None:
    samples, clock = Samples(), Clock()

    with Sampler({"host": [Scripted("one", {"a": 1.0})]}, interval_s=0.2, on_sample=samples, monotonic=clock):
        taken = samples.wait_for(6)

    assert clock.start is not None
    for number, sample in enumerate(taken):
        assert sample.mono >= clock.start + number * 0.2 - 1e-6


def test_ticks_that_come_too_late_are_left_out_and_counted() -> None:
    samples, clock = Samples(), Clock()
    slow = Slow(clock, seconds=[0.0, 0.5])

    with Sampler({"host": [slow]}, interval_s=0.2, on_sample=samples, monotonic=clock) as sampler:
        taken = samples.wait_for(3)

    # the second tick, at 0.2 s or later, was busy for 0.5 s: those at 0.4 s and 0.6 s lay behind then
    assert clock.start is not None
    assert taken[2].mono >= clock.start + 0.8 - 1e-6
    assert (sampler.counts()["agent_ticks_missed_total"] or 0) >= 2
    assert sampler.overruns >= 1


def test_a_failing_collector_leaves_gaps_with_a_reason_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    flaky = Scripted("flaky", {"a": 1.0, "b": 2.0}, RuntimeError("sensor\ngone"), ValueError("x"), {"a": 3.0, "b": 4.0})
    sampler = Sampler({"host": [flaky, Scripted("steady", {"c": 5.0})]}, interval_s=5.0, on_sample=ignore)
    caplog.set_level(logging.INFO)

    taken = [sampler.sample()["host"] for _ in range(4)]

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
    sampler = Sampler({"host": [broken, Scripted("good", {"good_metric": 1.0})]}, interval_s=60.0, on_sample=ignore)

    with sampler:
        sample = sampler.sample()["host"]
        report = sampler.capabilities()

    assert sample.values == {"good_metric": 1.0}
    assert report == {"broken_metric": "no permission: /sys/x", "good_metric": None}
    assert sampler.metrics() == ["good_metric"]


def test_a_collector_that_cannot_even_be_probed_does_not_stop_the_start() -> None:
    class Unprobed(Scripted):
        def probe(self) -> Mapping[str, str | None]:
            raise OSError("no such bus")

    samples = Samples()
    with Sampler({"host": [Unprobed("bus", {"a": 1.0})]}, interval_s=60.0, on_sample=samples) as sampler:
        samples.wait_for(1)

        assert sampler.capabilities() == {"bus": "failed: OSError: no such bus"}


def test_a_receiver_that_fails_loses_its_sample_and_nothing_else() -> None:
    samples = Samples()

    def receive(stream: str, sample: Sample) -> None:
        samples(stream, sample)
        raise RuntimeError("receiver")

    with Sampler({"host": [Scripted("one", {"a": 1.0})]}, interval_s=0.2, on_sample=receive):
        samples.wait_for(3)


def test_a_shorter_interval_acts_at_once() -> None:
    samples, clock = Samples(), Clock()

    with Sampler(
        {"host": [Scripted("one", {"a": 1.0})]}, interval_s=60.0, on_sample=samples, monotonic=clock
    ) as sampler:
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

    with Sampler(
        {"host": [Scripted("one", {"a": 1.0})]}, interval_s=0.5, on_sample=samples, monotonic=clock
    ) as sampler:
        samples.wait_for(1)
        for _ in range(100):
            sampler.set_interval(0.5)
        second = samples.wait_for(2)[1]

    assert clock.start is not None
    assert second.mono >= clock.start + 0.5 - 1e-6


def test_stopping_does_not_wait_for_the_next_tick() -> None:
    samples = Samples()
    sampler = Sampler({"host": [Scripted("one", {"a": 1.0})]}, interval_s=3600.0, on_sample=samples)
    sampler.start()
    samples.wait_for(1)

    sampler.stop(timeout_s=20.0)

    assert "fedmon-sampler" not in [thread.name for thread in threading.enumerate()]
    assert sampler.ticks == 1


@pytest.mark.parametrize("interval_s", [0.19, 0.0, -1.0, float("nan")])
def test_an_interval_below_the_limit_is_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match=r"use 0\.2 s or more"):
        Sampler({"host": []}, interval_s=interval_s, on_sample=ignore)


def test_the_real_collectors_run_together_and_count_their_own_cost() -> None:
    samples = Samples()
    collectors = host_collectors(counts=lambda: sampler.counts())  # noqa: PLW0108 - there is no sampler yet
    sampler = Sampler({"host": collectors}, interval_s=0.2, on_sample=samples)

    with sampler:
        first, second = samples.wait_for(2)
        report = sampler.capabilities()

    assert first.values["host_cpu_busy_ratio"] is None
    assert first.reasons["host_cpu_busy_ratio"] == "first sample"
    assert first.reasons["agent_collect_seconds"] == "first sample"
    assert (second.values["agent_collect_seconds"] or 0) > 0
    assert report["host_memory_total_bytes"] is None
    assert report["agent_collect_seconds"] is None


class Ticking:
    """Both clocks, moved by hand."""

    def __init__(self, mono: float = 100.0, wall: float = 1_000_000.0) -> None:
        self.mono, self.wall = mono, wall

    def advance(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += seconds


def ticked(collectors: list[Scripted], clock: Ticking) -> Sampler:
    return Sampler(
        {"host": collectors}, interval_s=1.0, on_sample=ignore, monotonic=lambda: clock.mono, wall=lambda: clock.wall
    )


def test_a_slow_lane_is_read_when_its_time_is_over_and_absent_in_between() -> None:
    clock = Ticking()
    fast = Scripted("fast", {"f": 1.0})
    medium, slow = Scripted("medium", {"m": 1.0}, lane=Lane.MEDIUM), Scripted("slow", {"s": 1.0}, lane=Lane.SLOW)
    sampler = ticked([fast, medium, slow], clock)

    taken = []
    for _ in range(121):
        taken.append(sampler.sample()["host"])
        clock.advance(1.0003)

    assert all("f" in sample.values for sample in taken)
    assert [number for number, sample in enumerate(taken) if "m" in sample.values] == list(range(0, 121, 10))
    assert [number for number, sample in enumerate(taken) if "s" in sample.values] == [0, 60, 120]
    assert all(sample.reasons == {} for sample in taken)


def test_a_lane_is_read_at_each_tick_when_ticks_are_further_apart_than_it() -> None:
    clock = Ticking()
    medium = Scripted("medium", {"m": 1.0}, lane=Lane.MEDIUM)
    sampler = ticked([medium], clock)

    for _ in range(5):
        sampler.sample()
        clock.advance(30.0)

    assert len(medium.instants) == 5


@pytest.mark.parametrize("step_s", [-86_400.0, 7_200.0])
def test_a_step_of_the_wall_clock_moves_no_tick_and_no_monotonic_time(step_s: float) -> None:
    clock = Ticking()
    medium = Scripted("medium", {"m": 1.0}, lane=Lane.MEDIUM)
    sampler = ticked([medium], clock)
    before = sampler.sample()["host"]
    clock.advance(10.0)
    clock.wall += step_s

    after = sampler.sample()["host"]

    assert after.mono - before.mono == 10.0
    assert after.t - before.t == 10.0 + step_s
    assert len(medium.instants) == 2


def test_streams_share_the_instant_and_come_and_go_while_it_runs() -> None:
    samples: dict[str, list[Sample]] = {"host": [], "job-1": []}
    arrived = threading.Condition()

    def take(stream: str, sample: Sample) -> None:
        with arrived:
            samples[stream].append(sample)
            arrived.notify_all()

    job = Scripted("job", {"j": 1.0})
    with Sampler({"host": [Scripted("one", {"a": 1.0})]}, interval_s=0.2, on_sample=take) as sampler:
        sampler.add_stream("job-1", [job])
        with arrived:
            assert arrived.wait_for(lambda: len(samples["job-1"]) >= 2, 20.0)
        streams = sampler.streams
        sampler.remove_stream("job-1")
        read = len(job.instants)
        with arrived:
            so_far = len(samples["host"])
            assert arrived.wait_for(lambda: len(samples["host"]) >= so_far + 2, 20.0)

    assert streams == ["host", "job-1"]
    assert {sample.mono for sample in samples["job-1"]} <= {sample.mono for sample in samples["host"]}
    assert len(job.instants) == read
    assert sampler.streams == ["host"]


def test_collectors_are_closed_when_their_stream_or_the_sampler_ends() -> None:
    first, second, host = Closing("a", {"a": 1.0}), Closing("b", {"b": 1.0}), Closing("c", {"c": 1.0})
    with Sampler({"host": [host]}, interval_s=60.0, on_sample=ignore) as sampler:
        sampler.add_stream("job-1", [first])
        sampler.add_stream("job-1", [second])
        replaced = (first.closed, second.closed)
        sampler.remove_stream("job-1")

    assert replaced == (1, 0)
    assert (second.closed, host.closed) == (1, 1)


class Hanging(Scripted):
    """A collector that does not come back from its reading until it is let go."""

    def __init__(self) -> None:
        super().__init__("hanging", {"a": 1.0})
        self.is_hanging, self.let_go = threading.Event(), threading.Event()

    def collect(self, now: Instant) -> Reading:
        self.is_hanging.set()
        self.let_go.wait()
        return super().collect(now)


def test_a_collector_that_never_comes_back_is_named_and_keeps_nobody_else_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging, beside, host = Hanging(), Closing("b", {"b": 1.0}), Closing("c", {"c": 1.0})
    sampler = Sampler({"host": [host, hanging], "job-1": [beside]}, interval_s=0.2, on_sample=ignore)
    sampler.start()
    assert hanging.is_hanging.wait(20.0)

    sampler.check_stuck(stuck_after_s=0.0)
    sampler.check_stuck(stuck_after_s=0.0)
    removing = Deadline(10.0)
    sampler.remove_stream("job-1")
    was_in_time = not removing.passed()
    sampler.stop(timeout_s=0.1)
    hanging.let_go.set()

    assert was_in_time
    assert caplog.text.count("one collector does not come back: hanging: failed: no answer for 0 s") == 1
    assert beside.closed >= 1
    assert host.closed >= 1


def test_a_stream_that_comes_after_the_end_is_closed_at_once() -> None:
    late = Closing("a", {"a": 1.0})
    with Sampler({}, interval_s=60.0, on_sample=ignore) as sampler:
        pass

    sampler.add_stream("job-1", [late])

    assert late.closed == 1
    assert sampler.streams == []


def test_a_value_that_is_missing_without_a_word_gets_a_reason() -> None:
    sampler = Sampler({"host": [Scripted("one", {"a": None, "b": 1.0})]}, interval_s=5.0, on_sample=ignore)

    sample = sampler.sample()["host"]

    assert sample.reasons == {"a": "failed: the collector gave no value and no reason"}


def test_costly_sampling_backs_off_and_says_at_which_pace_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    samples, spent = Samples(), iter(range(0, 10_000, 100))
    sampler = Sampler(
        {"host": [Scripted("one", {"a": 1.0})]},
        interval_s=0.2,
        on_sample=samples,
        cost_budget_ratio=0.05,
        cpu=lambda: next(spent) / 1000.0,  # each tick takes 0.1 s, half of its interval
    )

    with sampler:
        samples.wait_for(2)
        interval_s = sampler.counts()["agent_interval_seconds"]

    assert sampler.asked_interval_s == 0.2
    assert (interval_s or 0) >= 0.4
    assert "samples are now 2 times as far apart" in caplog.text


@given(
    start=st.floats(0, 1e7),
    interval_s=st.floats(0.2, 3600),
    number=st.integers(0, 10**6),
    late_s=st.floats(0, 1e5),
)
def test_the_next_tick_is_the_first_that_is_not_over(
    start: float, interval_s: float, number: int, late_s: float
) -> None:
    grid = TickGrid(start=start, interval_s=interval_s)
    now = grid.due(number) + late_s

    following, missed = grid.after(number, now)

    assert following == number + 1 + missed
    assert missed >= 0
    assert grid.due(following) >= now
    assert missed == 0 or grid.due(following - 1) < now + 1e-6 * interval_s


@pytest.mark.parametrize(
    ("parts", "interval_s", "stretch"),
    [
        ([(100, 0.04)], 1.0, 1), ([(1000, 0.19)], 1.0, 4), ([(1000, 100.0)], 1.0, MAX_STRETCH),
        ([(10, 0.19), (100, 0.001)], 1.0, 1), ([(20, 0.001), (1, 0.3)], 1.0, 1), ([(1, 0.02), (2, 0.001)], 0.2, 1),
    ],
    ids=["within", "above", "never fits", "cheap again", "one costly tick", "the first tick opens everything"],
)  # fmt: skip
def test_sampling_above_its_budget_is_stretched_until_it_fits(
    parts: list[tuple[int, float]], interval_s: float, stretch: int
) -> None:
    cost = SamplingCost(budget_ratio=0.05)

    for ticks, cpu_s in parts:
        for _ in range(ticks):
            cost.account(cpu_s, interval_s * cost.stretch)

    assert cost.stretch == stretch
    assert round(cost.cpu_s, 6) == round(sum(ticks * cpu_s for ticks, cpu_s in parts), 6)
