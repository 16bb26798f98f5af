from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.energy import EnergyMeter, energy_collectors, job_energy_collectors
from fedmon.node.collectors.energy.meter import EnergyCollector
from tests.support.energy_tree import RANGE_UJ, EnergyTree, at

JOULES, KILOWATT_HOURS = "job_energy_joules_total", "job_energy_kilowatt_hours_total"
GRAMS = "job_emissions_grams_total"
FRANCE = EnergySettings(region="FR")


class Machine:
    """One socket whose counter, CPU time and jobs a test moves on."""

    def __init__(self, root: Path, *, gpus: dict[str, float] | None = None, start_uj: int = 0) -> None:
        self.tree = EnergyTree(root)
        self.tree.zone("intel-rapl:0", "package-0", start_uj)
        self.raw_uj, self.busy_s = start_uj, 100.0
        self.jobs: dict[str, float] = {}
        self.gpus = gpus or {}
        self.shares: Mapping[str, Mapping[str, float | None]] | None = {}
        self.meter = EnergyMeter(
            self.tree.roots,
            FRANCE,
            job_cpu=lambda _now: dict(self.jobs),
            gpu_energy=lambda: self.gpus,
            gpu_shares=self._shares,
        )
        self.collectors = energy_collectors(self.meter)

    @property
    def busy_s(self) -> float:
        return self._busy_s

    @busy_s.setter
    def busy_s(self, seconds: float) -> None:
        self._busy_s = seconds
        self.tree.busy(seconds)

    def _shares(self) -> Mapping[str, Mapping[str, float | None]]:
        if self.shares is None:
            raise CollectorUnavailableError(Why.FAILED, "no list")
        return self.shares

    def draw(self, drawn_uj: int) -> None:
        self.raw_uj = (self.raw_uj + drawn_uj) % RANGE_UJ
        self.tree.shows("intel-rapl:0", self.raw_uj)

    def watch(self, *names: str) -> list[EnergyCollector]:
        return [EnergyCollector(self.meter, name) for name in names]


def joules_at(mono: float, *collectors: EnergyCollector) -> list[float | None]:
    return [collector.collect(at(mono)).values[JOULES] for collector in collectors]


def test_a_job_gets_its_part_of_the_busy_cpu_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.jobs = {"a": 10.0, "b": 50.0}
    a, b = machine.watch("a", "b")
    assert joules_at(0, a, b) == [0.0, 0.0]

    machine.draw(80_000_000)
    machine.busy_s += 4.0
    machine.jobs = {"a": 11.0, "b": 52.0}

    assert joules_at(1, a, b) == [20.0, 40.0]
    assert a.probe() == {JOULES: None}


def test_jobs_that_used_more_cpu_than_the_machine_counted_share_what_there_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.jobs = {"a": 0.0, "b": 0.0}
    a, b = machine.watch("a", "b")
    joules_at(0, a, b)

    machine.draw(30_000_000)
    machine.jobs = {"a": 1.0, "b": 2.0}

    assert joules_at(1, a, b) == [10.0, 20.0]


def test_what_is_drawn_before_a_job_and_by_nobody_belongs_to_nobody(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus={"0": 500.0})
    machine.draw(1_000_000_000)
    (early,) = machine.watch("early")
    early.collect(at(0))
    machine.draw(50_000_000)
    machine.gpus["0"] += 90.0
    machine.busy_s += 1.0

    machine.jobs, machine.shares = {"late": 900.0}, {"late": {"0": 1.0}}
    (late,) = machine.watch("late")

    assert joules_at(10, late) == [0.0]
    assert early.collect(at(10)).reasons[JOULES] == "not found: job early has no CPU time"


def test_a_new_job_is_not_charged_what_a_gpu_drew_before_it_though_its_share_is_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus={"0": 500.0})
    (early,) = machine.watch("early")
    early.collect(at(0))

    machine.gpus["0"] += 90_000.0
    machine.jobs, machine.shares = {"late": 0.0}, {"late": {"0": None}}
    (late,) = machine.watch("late")
    first = joules_at(5, late)
    machine.gpus["0"] += 60.0
    machine.shares = {"late": {"0": 1.0}}

    assert (first, joules_at(10, late)) == ([0.0], [60.0])


def test_the_energy_of_a_gpu_is_shared_by_use_and_only_with_the_jobs_that_use_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus={"0": 500.0, "1": 0.0})
    machine.jobs = {"a": 0.0, "b": 0.0, "c": 0.0}
    a, b, c = machine.watch("a", "b", "c")
    joules_at(0, a, b, c)

    machine.gpus.update({"0": 600.0, "1": 60.0})
    machine.shares = {"a": {"0": 0.5, "1": 1.5}, "b": {"0": 0.25, "1": 1.0}, "gone": {"0": 1.0}}
    machine.busy_s += 1.0

    assert joules_at(1, a, b, c) == [80.0, 55.0, 0.0]


def test_the_energy_of_a_gpu_waits_until_it_is_known_who_used_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus={"0": 500.0, "1": 0.0})
    machine.jobs = {"a": 0.0}
    (a,) = machine.watch("a")
    joules_at(0, a)

    machine.gpus.update({"0": 600.0, "1": 60.0})
    machine.shares = {"a": {"0": None, "1": 0.5}}
    machine.busy_s += 1.0
    waiting = joules_at(1, a)
    machine.shares = None
    unread = a.collect(at(1.5))
    machine.gpus.update({"0": 640.0})
    machine.shares = {"a": {"0": 0.5, "1": 0.5}}
    machine.busy_s += 1.0

    assert (waiting, unread) == ([30.0], ({JOULES: None}, {JOULES: "failed: no list"}))
    assert joules_at(2, a) == [100.0]


def test_energy_that_is_unknown_for_a_while_is_handed_out_when_it_is_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.jobs = {"a": 0.0}
    (a,) = machine.watch("a")
    joules_at(0, a)

    machine.tree.shows("intel-rapl:0", "garbage")
    machine.busy_s, machine.jobs["a"] = 101.0, 1.0
    missed = a.collect(at(1))
    machine.draw(60_000_000)
    machine.busy_s, machine.jobs["a"] = 103.0, 2.0

    assert missed.values == {JOULES: None}
    assert "garbage" in missed.reasons[JOULES]
    assert joules_at(3, a) == [40.0]


def test_a_job_that_is_away_gets_nothing_for_that_time_and_keeps_its_account_until_it_is_closed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.jobs = {"a": 0.0}
    (a,) = machine.watch("a")
    joules_at(0, a)
    machine.draw(10_000_000)
    machine.busy_s, machine.jobs = 101.0, {"a": 1.0}
    joules_at(1, a)

    machine.jobs = {}
    away = a.collect(at(2))
    machine.draw(10_000_000)
    machine.busy_s, machine.jobs = 102.0, {"a": 7.0}
    back = joules_at(3, a)
    a.close()
    again = joules_at(4, a)

    assert away == ({JOULES: None}, {JOULES: "not found: job a has no CPU time"})
    assert (back, again) == ([10.0], [0.0])


def test_a_machine_without_energy_leaves_the_share_out(tmp_path: Path) -> None:
    bare = EnergyMeter(EnergyTree(tmp_path).roots, FRANCE)

    share, emissions = job_energy_collectors(bare, "a")

    assert (share.collect(at(0)), emissions.collect(at(0))) == (({}, {}), ({}, {}))
    assert share.probe() == {JOULES: bare.no_method}
    assert emissions.probe() == {KILOWATT_HOURS: bare.no_method, GRAMS: bare.no_method}


def test_a_jobs_kilowatt_hours_and_grams_follow_from_its_joules(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.jobs = {"a": 0.0}
    _, emissions = job_energy_collectors(machine.meter, "a")
    emissions.collect(at(0))

    machine.draw(3_600_000_000)
    machine.busy_s, machine.jobs["a"] = 101.0, 1.0
    values = emissions.collect(at(10)).values

    assert values == pytest.approx({KILOWATT_HOURS: 0.001, GRAMS: 0.056})


EVENTS = st.sampled_from(["", "", "", "reset", "garbage", "busy back", "unplugged", "long"])
SECONDS = st.floats(0.0, 4.0)
STEP = st.tuples(
    EVENTS,
    st.integers(0, 900_000_000),
    SECONDS,
    st.dictionaries(st.sampled_from("abcd"), SECONDS),
    st.dictionaries(st.sampled_from("abcd"), st.fixed_dictionaries({"0": st.floats(0.0, 2.0)})),
    st.one_of(st.none(), st.floats(0.0, 300.0)),
    st.sampled_from([0.0, -86_400.0, 7200.0]),
)


@settings(max_examples=60)
@given(steps=st.lists(STEP, min_size=2, max_size=15), start_uj=st.integers(0, RANGE_UJ))
def test_all_jobs_together_never_get_more_than_the_machine_drew(
    steps: list[tuple[str, int, float, dict[str, float], dict[str, Mapping[str, float]], float | None, float]],
    start_uj: int,
) -> None:
    with tempfile.TemporaryDirectory(prefix="fedmon-energy-") as folder:
        machine = Machine(Path(folder), gpus={"0": 10.0}, start_uj=start_uj)
        watched = {name: job_energy_collectors(machine.meter, name) for name in "abcd"}
        _, _, node, node_emissions = machine.collectors
        mono = 0.0
        highest: dict[str, float] = {}
        for event, step_uj, busy_s, cpu, shares, gpu_j, wall_s in steps:
            mono += 400.0 if event == "long" else 1.0
            machine.draw(step_uj)
            machine.busy_s = max(0.0, machine.busy_s + (-50.0 if event == "busy back" else busy_s))
            machine.jobs = {name: machine.jobs.get(name, 3.0) + seconds for name, seconds in cpu.items()}
            machine.shares = shares
            machine.gpus = {} if gpu_j is None else {"0": machine.gpus.get("0", 0.0) + gpu_j}
            if event == "reset":
                machine.raw_uj = machine.raw_uj // 3
            if event == "unplugged":
                (machine.tree.powercap / "intel-rapl:0/energy_uj").unlink()
            else:
                machine.tree.shows("intel-rapl:0", "garbage" if event == "garbage" else machine.raw_uj)

            now = at(mono, t=1_700_000_000.0 + wall_s)
            found = dict(node.collect(now).values) | dict(node_emissions.collect(now).values)
            shown: dict[str, list[float]] = {JOULES: [], KILOWATT_HOURS: [], GRAMS: []}
            for name, collector in itertools.chain.from_iterable(
                ((name, collector) for collector in collectors) for name, collectors in watched.items()
            ):
                reading = collector.collect(now)
                for key, value in reading.values.items():
                    assert (value is None) == (key in reading.reasons)
                    if value is not None:
                        assert value >= highest.get(name + key, 0.0)
                        highest[name + key] = value
                        shown[key].append(value)
            for key, values in shown.items():
                whole = found[f'{key.replace("job_", "node_")}{{method="components"}}']
                assert whole is not None or not values
                if whole is not None:
                    every_job_ever = sum(value for name, value in highest.items() if name.endswith(key))
                    assert every_job_ever <= whole * (1 + 1e-12)  # floats are rounded to the nearest
