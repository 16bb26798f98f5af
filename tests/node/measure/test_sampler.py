"""The sampler keeps its grid, and no collector, receiver or clock disturbs another."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant, Sample
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.measure.sampler import MAX_STRETCH, Sampler, SamplingCost, StreamReader, next_tick
from tests.support.waiting import wait_until


class Scripted:
    """A collector whose readings are written down; the last one is repeated, and a function is called first."""

    def __init__(
        self,
        name: str,
        *readings: Mapping[str, float | None] | Exception,
        lane: Lane = Lane.FAST,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.name, self.lane = name, lane
        self._readings, self._before = list(readings), before
        self.instants: list[Instant] = []
        self.closed = 0

    def collect(self, now: Instant) -> Reading:
        self._before()
        self.instants.append(now)
        reading = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(reading, Exception):
            raise reading
        return Reading(reading)

    def probe(self) -> Mapping[str, str | None]:
        return {f"{self.name}_metric": None}

    def close(self) -> None:
        self.closed += 1


class Hang:
    """A call that has begun, and returns once it is let go."""

    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        self.let_go.wait(60.0)


class Samples:
    """Keeps samples, by stream, and lets a test wait for them."""

    def __init__(self) -> None:
        self.of: dict[str, list[Sample]] = {}

    def __call__(self, samples: Mapping[str, Sample]) -> None:
        for stream, sample in samples.items():
            if sample.values:
                self.of.setdefault(stream, []).append(sample)

    def wait_for(self, count: int, stream: str = "host") -> list[Sample]:
        wait_until(lambda: len(self.of.get(stream, [])) >= count)
        return self.of[stream][:count]


@pytest.fixture
def samples() -> Samples:
    return Samples()


def sampler(samples: Samples, *collectors: Scripted, interval_s: float = 0.2, **more: float) -> Sampler:
    return Sampler(
        {"host": collectors or [Scripted("one", {"a": 1.0})]}, interval_s=interval_s, on_tick=samples, **more
    )


def on_grid(taken: list[Sample], start: float, interval_s: float) -> bool:
    return all(sample.mono >= start + number * interval_s - 1e-6 for number, sample in enumerate(taken))


def test_no_sample_comes_before_its_tick(samples: Samples) -> None:
    start = time.monotonic()
    with sampler(samples):
        assert on_grid(samples.wait_for(6), start, 0.2)


def test_ticks_that_come_too_late_are_left_out_and_counted(samples: Samples) -> None:
    delays = iter([0.0, 0.5])
    slow = Scripted("slow", {"a": 1.0}, before=lambda: threading.Event().wait(next(delays, 0.0)))
    start = time.monotonic()

    with sampler(samples, slow) as running:
        taken = samples.wait_for(3)

    # The second tick, at 0.2 s or later, was busy for 0.5 s: those at 0.4 s and 0.6 s were over then.
    assert taken[2].mono >= start + 0.8 - 1e-6
    assert (running.counts()["agent_ticks_missed_total"] or 0) >= 2
    assert running.overruns >= 1


def test_a_failing_collector_leaves_gaps_with_a_reason_and_the_others_go_on(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    flaky = Scripted("flaky", {"a": 1.0, "b": 2.0}, RuntimeError("sensor\ngone"), ValueError("x"), {"a": 3.0, "b": 4.0})
    sampling = sampler(samples, flaky, Scripted("steady", {"c": 5.0}))
    caplog.set_level(logging.INFO)

    taken = [sampling.sample()["host"] for _ in range(4)]

    assert [sample.values for sample in taken] == [
        {"a": 1.0, "b": 2.0, "c": 5.0},
        {"a": None, "b": None, "c": 5.0},
        {"a": None, "b": None, "c": 5.0},
        {"a": 3.0, "b": 4.0, "c": 5.0},
    ]
    assert taken[1].reasons == dict.fromkeys(("a", "b"), "failed: RuntimeError: sensor gone")
    assert taken[3].reasons == {}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_collector_that_never_worked_is_absent_and_the_report_says_why(samples: Samples) -> None:
    class Unprobed(Scripted):
        def probe(self) -> Mapping[str, str | None]:
            raise OSError("no such bus")

    broken = Scripted("broken", CollectorUnavailableError(Why.NO_PERMISSION, "/sys/x"))
    good = Scripted("good", {"good_metric": 1.0})

    with sampler(samples, broken, good, Unprobed("bus", {"x": None})) as running:
        (sample,) = samples.wait_for(1)

    assert sample.values == {"good_metric": 1.0, "x": None}
    assert running.capabilities() == {
        "broken_metric": "no permission: /sys/x", "good_metric": None, "bus": "failed: OSError: no such bus",
    }  # fmt: skip
    assert running.metrics() == ["good_metric"]


def test_a_receiver_that_fails_loses_its_samples_and_nothing_else(samples: Samples) -> None:
    def receive(taken: Mapping[str, Sample]) -> None:
        samples(taken)
        raise RuntimeError("receiver")

    with Sampler({"host": [Scripted("one", {"a": 1.0})]}, interval_s=0.2, on_tick=receive):
        samples.wait_for(3)


@pytest.mark.parametrize(("interval_s", "shorter_s"), [(60.0, 0.2), (2.0, 0.5)], ids=["long", "a multiple"])
def test_a_shorter_interval_acts_at_once_and_the_same_one_disturbs_nothing(
    samples: Samples, interval_s: float, shorter_s: float
) -> None:
    start, waited = time.monotonic(), Deadline(20.0)

    with sampler(samples, interval_s=interval_s) as running:
        samples.wait_for(1)
        for _ in range(100):
            running.set_interval(shorter_s)
        taken = samples.wait_for(7)
        missed = running.counts()["agent_ticks_missed_total"]

    assert not waited.passed()
    assert on_grid(taken, start, shorter_s)
    assert running.interval_s == shorter_s
    assert missed or taken[-1].mono - taken[1].mono < 6 * shorter_s


def test_stopping_does_not_wait_for_the_next_tick_and_takes_the_last_sample_if_asked(samples: Samples) -> None:
    running = sampler(samples, interval_s=3600.0)
    running.start()
    samples.wait_for(1)

    running.stop(timeout_s=20.0, last_sample=True)

    assert "fedmon-sampler" not in [thread.name for thread in threading.enumerate()]
    assert len(samples.of["host"]) == 2


def read(reader: StreamReader, ticks: int, step_s: float) -> list[Sample]:
    return [reader.read(Instant(t=1e6 + step_s * number, mono=100 + step_s * number)) for number in range(ticks)]


def test_a_slow_lane_is_read_when_its_time_is_over_and_absent_in_between_and_at_each_tick_that_comes_later() -> None:
    lanes = {"f": Lane.FAST, "m": Lane.MEDIUM, "s": Lane.SLOW}

    taken = read(StreamReader([Scripted(key, {key: 1.0}, lane=lane) for key, lane in lanes.items()]), 121, 1.0003)

    assert [number for number, sample in enumerate(taken) if "m" in sample.values] == list(range(0, 121, 10))
    assert [number for number, sample in enumerate(taken) if "s" in sample.values] == [0, 60, 120]
    assert all("f" in sample.values and sample.reasons == {} for sample in taken)
    seldom = read(StreamReader([Scripted("medium", {"m": 1.0}, lane=Lane.MEDIUM)]), 5, 30.0)
    assert all("m" in sample.values for sample in seldom)


def test_a_step_of_the_wall_clock_moves_no_tick_and_no_monotonic_time() -> None:
    reader = StreamReader([Scripted("medium", {"m": 1.0}, lane=Lane.MEDIUM)])

    taken = [reader.read(Instant(t=t, mono=mono)) for t, mono in ((1e6, 100.0), (0.0, 105.0), (2e6, 110.0))]

    assert ["m" in sample.values for sample in taken] == [True, False, True]
    assert [(sample.t, sample.mono) for sample in taken] == [(1e6, 100.0), (0.0, 105.0), (2e6, 110.0)]


def test_streams_share_the_instant_and_come_and_go_while_it_runs(samples: Samples) -> None:
    job = Scripted("job", {"j": 1.0})
    with sampler(samples) as running:
        running.add_stream("job-1", [job])
        samples.wait_for(2, "job-1")
        streams = running.streams
        running.remove_stream("job-1")
        wait_until(lambda: job.closed)
        read_so_far = len(job.instants)
        samples.wait_for(len(samples.of["host"]) + 2)

    assert streams == ["host", "job-1"]
    assert {sample.mono for sample in samples.of["job-1"]} <= {sample.mono for sample in samples.of["host"]}
    assert len(job.instants) == read_so_far
    assert running.streams == ["host"]


def test_collectors_are_closed_when_their_stream_or_the_sampler_ends_and_late_ones_at_once(samples: Samples) -> None:
    first, second, host, late = (Scripted(name, {name: 1.0}) for name in "abcd")
    with sampler(samples, host, interval_s=60.0) as running:
        running.add_stream("job-1", [first])
        running.add_stream("job-1", [second])
        wait_until(lambda: first.closed)
        replaced = second.closed
        running.remove_stream("job-1")
    running.add_stream("job-2", [late])

    assert replaced == 0
    assert [each.closed for each in (first, second, host, late)] == [1, 1, 1, 1]
    assert running.streams == ["host"]


def test_the_others_go_on_without_a_collector_that_does_not_return_until_it_does(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    calls, hang = iter(range(1000)), Hang()
    before, after = Scripted("b", {"b": 1.0}), Scripted("a", {"a": 3.0})
    hanging = Scripted("h", {"h": 2.0}, before=lambda: hang() if next(calls) == 1 else None)
    with sampler(samples, before, hanging, after) as running:
        assert hang.began.wait(60)
        running.check_stuck(stuck_after_s=0.0)
        _, second, third = samples.wait_for(3)
        running.check_stuck(stuck_after_s=0.1)
        report = running.capabilities()
        hang.let_go.set()
        wait_until(lambda: samples.of["host"][-1].values["h"] == 2.0)
        threads = [thread.name for thread in threading.enumerate()].count("fedmon-sampler")

    assert second.values == third.values == {"b": 1.0, "h": None, "a": 3.0}
    assert second.reasons == {"h": "failed: the collector does not return"}
    assert report == {"b_metric": None, "h_metric": "failed: the collector does not return", "a_metric": None}
    assert caplog.text.count("collector h does not return") == 1
    assert threads == 1
    assert after.instants == sorted(set(after.instants), key=lambda instant: instant.mono)
    assert hanging.closed == 1


@pytest.mark.parametrize("is_removed_first", [True, False])
def test_a_collector_that_hangs_while_its_stream_is_removed_holds_up_nothing_and_is_closed_when_it_returns(
    samples: Samples, caplog: pytest.LogCaptureFixture, is_removed_first: bool
) -> None:
    hang, host = Hang(), Scripted("c", {"c": 1.0})
    hanging = Scripted("h", {"h": 2.0}, before=hang)
    with sampler(samples, host) as running:
        running.add_stream("job-1", [hanging])
        assert hang.began.wait(60)
        if is_removed_first:
            running.remove_stream("job-1")
        for _ in range(3):
            running.check_stuck(stuck_after_s=0.0)
        running.remove_stream("job-1")
        count = len(samples.of.get("host", []))
        samples.wait_for(count + 2)
        closed = hanging.closed
        hang.let_go.set()
        wait_until(lambda: hanging.closed, what="the collector to be closed")

    assert (closed, hanging.closed) == (0, 1)
    assert caplog.text.count("collector h does not return") == 1


def test_a_removed_collector_that_does_not_close_holds_up_no_other_one(samples: Samples) -> None:
    hang = Hang()

    class Stubborn(Scripted):
        def close(self) -> None:
            hang()
            super().close()

    stubborn, other = Stubborn("h", {"h": 2.0}), Scripted("o", {"o": 3.0})
    with sampler(samples, Scripted("c", {"c": 1.0})) as running:
        running.add_stream("job-1", [stubborn, other])
        running.remove_stream("job-1")
        assert hang.began.wait(60)
        running.check_stuck(stuck_after_s=0.0)
        samples.wait_for(len(samples.of.get("host", [])) + 2)
        wait_until(lambda: other.closed)
        hang.let_go.set()
        wait_until(lambda: stubborn.closed)

    assert (stubborn.closed, other.closed) == (1, 1)


def test_a_collector_that_hangs_at_the_end_keeps_no_other_from_being_closed_for_good(samples: Samples) -> None:
    hang = Hang()
    host, hanging, after = Scripted("c", {"c": 1.0}), Scripted("h", {"h": 2.0}, before=hang), Scripted("a", {"a": 3.0})
    running = sampler(samples, host, hanging, after)
    running.start()
    assert hang.began.wait(60)

    running.stop(timeout_s=0.1)
    closed = host.closed, hanging.closed, after.closed
    hang.let_go.set()
    wait_until(lambda: hanging.closed and samples.of, what="the end of the tick")

    assert closed == (1, 0, 1)
    assert after.instants == []


def test_a_collector_that_hangs_in_its_probe_is_closed_when_it_returns_and_no_other_is_probed(samples: Samples) -> None:
    hang, probed = Hang(), list[str]()

    class Probed(Scripted):
        def probe(self) -> Mapping[str, str | None]:
            self._before()
            probed.append(self.name)
            return super().probe()

    hanging, after = Probed("h", {"h": 2.0}, before=hang), Probed("a", {"a": 3.0})
    running = sampler(samples, hanging, after)
    starting = threading.Thread(target=running.start)
    starting.start()
    assert hang.began.wait(60)

    running.check_stuck(stuck_after_s=0.0)
    running.stop()
    closed = hanging.closed, after.closed
    hang.let_go.set()
    starting.join(60)

    assert closed == (0, 1)
    assert (hanging.closed, after.closed, probed) == (1, 1, ["h"])


def test_a_collector_that_is_closed_just_before_its_reading_is_not_read(samples: Samples) -> None:
    hang, calls = Hang(), iter(range(1000))

    class Asked(Scripted):
        @property
        def probe_changed(self) -> bool:
            if is_later := next(calls) > 0:  # the first is within the first reading
                hang()
            return is_later

    asked = Asked("l", {"l": 1.0}, lane=Lane.SLOW)
    running = sampler(samples, Scripted("c", {"c": 1.0}), asked)
    running.start()
    assert hang.began.wait(60)

    running.stop(timeout_s=0.1)
    hang.let_go.set()
    samples.wait_for(2)

    assert (asked.closed, len(asked.instants)) == (1, 1)


def test_costly_sampling_backs_off_and_says_at_which_pace_it_runs(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    def burn() -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.1:
            pass

    with sampler(samples, Scripted("costly", {"a": 1.0}, before=burn), cost_budget_ratio=0.05) as running:
        samples.wait_for(2)
        interval_s = running.counts()["agent_interval_seconds"]

    assert running.asked_interval_s == 0.2
    assert (interval_s or 0) >= 0.4
    assert "samples are now 2 times as far apart" in caplog.text


@given(due=st.floats(0, 1e7), interval_s=st.floats(0.2, 3600), late_s=st.floats(0, 1e5))
def test_the_next_tick_is_the_first_that_is_not_over(due: float, interval_s: float, late_s: float) -> None:
    now = due + late_s

    following, missed = next_tick(due, interval_s, now)

    assert missed >= 0
    assert following == due + (missed + 1) * interval_s
    assert following >= now
    assert missed == 0 or due + missed * interval_s < now + 1e-6 * interval_s


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
