"""The GPU collectors with their threads: what a tick takes, and what it does when NVML is slow, stuck or not there."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pynvml
import pytest

from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant, Sample
from fedmon.common.metrics.table import METRICS
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading
from fedmon.node.collectors.energy import EnergyMeter
from fedmon.node.collectors.host import host_collectors
from fedmon.node.collectors.nvml import JobGpuCollector, NvmlSession, gpu_shares, nvml_collectors, open_session, queries
from fedmon.node.collectors.nvml.collector import GpuCollector
from fedmon.node.collectors.nvml.library import Nvml
from fedmon.node.collectors.nvml.processes import LISTS
from fedmon.node.collectors.nvml.reader import LaneReader
from fedmon.node.measure.sampler import Sampler
from tests.support.energy_tree import EnergyTree
from tests.support.nvml import FakeGpu, FakeNvml, process, share
from tests.support.waiting import wait_until

NOW = Instant(t=1_700_000_000.0, mono=1000.0)
_SECONDS = itertools.count(1)
POWER = 'gpu_power_watts{gpu="0"}'
Open = Callable[[FakeNvml], tuple[NvmlSession, list[GpuCollector]]]


def tick() -> Instant:
    """Return the instant of another tick."""
    return Instant(t=NOW.t, mono=NOW.mono + next(_SECONDS))


def gpu_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fedmon-gpu")]


def collected(collector: Collector, key: str = POWER) -> Reading:
    """Collect until a series has a value."""
    found: list[Reading] = []

    def read() -> bool:
        found.append(collector.collect(tick()))
        return found[-1].values.get(key) is not None

    wait_until(read, what=f"a value of {key}")
    return found[-1]


@pytest.fixture(autouse=True)
def _no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread that gets no processor for some seconds not be taken for one that hangs."""
    monkeypatch.setattr("fedmon.node.collectors.nvml.reader.HANG_S", 60.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each reading be finished in its tick, and each thread in time."""
    monkeypatch.setattr("fedmon.node.collectors.nvml.collector.PATIENCE_S", 30.0)
    monkeypatch.setattr("fedmon.node.collectors.nvml.reader._END_S", 30.0)


@pytest.fixture
def opened() -> Iterator[Open]:
    """Collectors over a stand-in, closed at the end."""
    made: list[tuple[FakeNvml, list[GpuCollector]]] = []

    def make(fake: FakeNvml) -> tuple[NvmlSession, list[GpuCollector]]:
        session = open_session(Nvml(fake))
        made.append((fake, nvml_collectors(session)))
        return session, made[-1][1]

    yield make
    for fake, collectors in made:
        fake.release.set()
        close(collectors)
    wait_until(lambda: not gpu_threads(), what="the threads to end")


def close(collectors: list[GpuCollector]) -> None:
    for collector in collectors:
        collector.close()


@pytest.mark.usefixtures("patient")
def test_a_sampler_gets_a_fresh_reading_at_each_tick_and_nvml_runs_once(opened: Open) -> None:
    fake = FakeNvml(FakeGpu(), FakeGpu("GPU-1"))
    session, collectors = opened(fake)
    got: list[dict[str, float | None]] = []
    done = threading.Event()

    def keep(samples: Mapping[str, Sample]) -> None:
        got.append(samples["host"].values)
        if len(got) >= 4:
            done.set()

    with Sampler({"host": collectors}, interval_s=0.2, on_tick=keep, cost_budget_ratio=1.0) as sampler:
        assert done.wait(60)
        report = sampler.capabilities()
        energy = session.gpu_energy()

    assert got[0][POWER] == 123.456
    # A machine under load may miss ticks; without reading ahead there would be no reading at all.
    assert sum(values.get(POWER) is not None for values in got) >= 2
    assert 'gpu_pcie_receive_bytes_per_second{gpu="1"}' in got[0]
    assert report["gpu_power_watts"] is None
    assert set(METRICS) & set(report) == {name for name in METRICS if name.startswith("gpu_")}
    assert energy == {"0": 7000.5, "1": 7000.5}
    assert [gpu["uuid"] for gpu in session.hardware()] == ["GPU-0", "GPU-1"]
    assert (fake.calls["nvmlInit"], fake.calls["nvmlShutdown"], fake.running) == (1, 1, 0)
    assert fake.calls["nvmlDeviceGetHandleByIndex"] == 2
    assert not gpu_threads()


def test_an_nvml_that_does_not_start_holds_up_neither_the_node_nor_its_other_collectors(opened: Open) -> None:
    fake = FakeNvml(FakeGpu())
    fake.hang("nvmlInit")
    _, collectors = opened(fake)
    got: list[Sample] = []
    within = Deadline(15.0)

    with Sampler(
        {"host": [*collectors, *host_collectors()]},
        interval_s=0.2,
        on_tick=lambda samples: got.extend(samples.values()),
    ) as sampler:
        has_started = not within.passed()
        wait_until(lambda: any("host_memory_total_bytes" in sample.values for sample in got))
        before = sampler.capabilities()["gpu_power_watts"]
        fake.release.set()
        wait_until(lambda: got[-1].values.get(POWER) == 123.456)
        limits = 'gpu_power_limit_watts{gpu="0",limit="set"}'  # of the lane that is read every minute
        wait_until(lambda: any(sample.values.get(limits) == 700 for sample in got), what="what was late")
        wait_until(lambda: sampler.capabilities()["gpu_power_watts"] is None)

    assert has_started
    assert before is not None
    assert re.match(r"failed: (no answer for|the reading is not finished within)", before)


def test_a_reading_that_is_late_for_its_tick_is_handed_out_at_the_next_one(opened: Open) -> None:
    fake = FakeNvml(FakeGpu())
    _, (fast, *_) = opened(fake)
    collected(fast)
    fake.hang("nvmlDeviceGetPowerUsage")
    late = fast.collect(tick())
    fake.release.set()
    after = collected(fast)

    assert late.values == dict.fromkeys(after.values)
    assert late.reasons[POWER] == "failed: the reading is not finished within 0.2 s"
    assert after.values[POWER] == 123.456


def test_the_energy_of_gpus_whose_readings_are_always_late_counts_one_tick_later(tmp_path: Path) -> None:
    gpu, clock = FakeGpu(), itertools.count()
    fake, now_s = FakeNvml(gpu), [0.0]
    session = NvmlSession(Nvml(fake), monotonic=lambda: now_s[0])
    collectors = nvml_collectors(session)
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(tree.roots, EnergySettings(), gpu_energy=session.gpu_energy,
                        gpu_shares=lambda: gpu_shares(session, {"7": [100]}), job_cpu=lambda _: {"7": 0.0})  # fmt: skip
    gpu.answers["UtilizationRates"].gpu = 0
    gpu.answers["TotalEnergyConsumption"] = lambda: 1000 * 100 * next(clock)
    fake.hang("nvmlDeviceGetTotalEnergyConsumption")
    found: list[float | None] = []
    jobs: list[float | None] = []

    for _ in range(4):
        now = tick()
        collectors[0].collect(now)
        collectors[0].probe()
        found.append(meter.node(now).uj)
        jobs.append(meter.job(now, "7").uj)
        fake.release.set()
        wait_until(lambda: collectors[0].probe_changed, what="the late reading")
        fake.release.clear()
        now_s[0] += 5.0
    close(collectors)

    assert found == [0, 0, 100_000_000, 200_000_000]
    assert jobs == [0, 0, 0, 0]


def test_a_reading_that_is_late_for_a_slow_lane_is_handed_out_once_without_another_one(opened: Open) -> None:
    fake = FakeNvml(FakeGpu())
    _, (_, counters, *_) = opened(fake)
    counters.wait_probed(5.0)
    counters.probe()
    fake.hang("nvmlDeviceGetPcieReplayCounter")
    late = counters.collect(tick())
    fake.release.set()
    wait_until(lambda: counters.probe_changed, what="the late reading")

    after = counters.collect(tick())

    assert late.values['gpu_pcie_replays_total{gpu="0"}'] is None
    assert after.values['gpu_pcie_replays_total{gpu="0"}'] == 3
    assert fake.calls["nvmlDeviceGetPcieReplayCounter"] == 2
    assert not counters.probe_changed


def test_the_collectors_of_a_tick_share_its_patience(opened: Open) -> None:
    gpu = FakeGpu()
    _, collectors = opened(FakeNvml(gpu))
    for collector in collectors:
        collector.wait_probed(5.0)
    slow = threading.Event()  # nothing sets it: each lane has one call that takes 0.19 s
    for name in ("PowerUsage", "PcieReplayCounter", "EnforcedPowerLimit"):
        gpu.answers[name] = lambda: slow.wait(0.19)

    now = tick()
    readings = {collector.name: collector.collect(now) for collector in collectors}

    assert set(readings["gpu-limits"].reasons.values()) == {"failed: the reading is not finished within 0.2 s"}


def test_a_call_that_hangs_leaves_all_gpus_out_until_it_returns(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(FakeGpu(), FakeGpu("GPU-1"))
    session, (fast, counters, *_) = opened(fake)
    collected(fast)
    collected(counters, 'gpu_pcie_replays_total{gpu="0"}')
    fake.hang("nvmlDeviceGetPowerUsage", on=fake.gpus[0])
    fast.collect(tick())
    wait_until(lambda: fake.hanging, what="the call that hangs")
    monkeypatch.setattr("fedmon.node.collectors.nvml.reader.HANG_S", 0.0)

    late, lane = fast.collect(tick()), counters.collect(tick())
    energy, processes = session.gpu_energy(), session.processes()
    monkeypatch.setattr("fedmon.node.collectors.nvml.reader.HANG_S", 60.0)
    fake.hang("")
    fake.release.set()
    again = collected(fast)

    assert set(late.values.values()) == set(lane.values.values()) == {None}
    for reading in (late, lane):
        for reason in reading.reasons.values():
            assert re.fullmatch(r"failed: no answer for \d+\.\d s: nvmlDeviceGetPowerUsage of GPU 0", reason)
    assert (energy, processes) == (None, None)
    assert again.values['gpu_power_watts{gpu="1"}'] == 123.456
    assert again.reasons == {}


def test_closing_leaves_a_stuck_thread_behind_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.node.collectors.nvml.reader.HANG_S", 0.1)
    fake = FakeNvml(FakeGpu())
    fake.hang("nvmlInit")
    collectors = nvml_collectors(open_session(Nvml(fake)))
    first = collectors[0].collect(tick())

    def reason() -> str:
        collectors[0].collect(tick())
        return str(collectors[0].probe()["gpu_power_watts"])

    wait_until(lambda: re.fullmatch(r"failed: no answer for \d+\.\d s: nvmlInit", reason()))
    close(collectors)
    fake.release.set()

    assert first == Reading({})
    assert "fedmon-gpu was left behind: it is stuck in nvmlInit" in caplog.text
    wait_until(lambda: not gpu_threads(), what="the thread to end")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "not found: nvmlInit: library not found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not found: nvmlInit: driver not loaded"),
        (None, "not found: no GPU: NVML lists none"),
    ],
)
def test_without_gpus_every_metric_says_so_and_no_thread_stays(code: int | None, reason: str, opened: Open) -> None:
    fake = FakeNvml()
    if code is not None:
        fake.refuse("nvmlInit", code)
    session, collectors = opened(fake)

    report = {name: why for collector in collectors for name, why in collector.probe().items()}

    assert report == {name: reason for name in METRICS if name.startswith("gpu_")}
    wait_until(lambda: not gpu_threads(), what="the threads to end")
    assert [collector.collect(NOW) for collector in collectors] == [Reading({})] * 4
    assert not gpu_threads()
    assert (session.gpu_energy(), session.hardware(), fake.running) == ({}, [], 0)
    assert len(nvml_collectors(session)) == 1


def test_without_the_drivers_library_there_is_nothing_but_a_reason() -> None:
    if open_session().absent is None:
        pytest.skip("this machine has NVIDIA's library")
    session, reason = open_session(), "not found: libnvidia-ml.so.1: no NVIDIA driver on this machine"

    (absent,), job = nvml_collectors(session), JobGpuCollector(session, job_id="7", jobs=dict)

    assert absent.lane is Lane.SLOW
    assert absent.collect(NOW) == job.collect(NOW) == Reading({})
    assert absent.probe() == {name: reason for name in METRICS if name.startswith("gpu_")}
    assert set(job.probe().values()) == {reason}
    assert not gpu_threads()


@pytest.mark.usefixtures("patient")
def test_an_nvml_that_cannot_start_now_is_tried_again() -> None:
    fake = FakeNvml(FakeGpu())
    end = fake.refuse("nvmlInit", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    session = NvmlSession(Nvml(fake), retry_s=0.0)
    collectors = nvml_collectors(session)
    try:
        refused = collectors[0].probe()
        end()
        found = collected(collectors[0])
    finally:
        close(collectors)

    assert refused["gpu_power_watts"] == "failed: nvmlInit: lib rm version mismatch"
    assert found.values[POWER] == 123.456
    assert fake.running == 0


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_memory_and_multiprocessors_are_summed_over_the_processes_of_a_job() -> None:
    one, other = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    other.compute, other.graphics = [process(300, 5)], []
    one.compute.append(process(9, 7))
    one.shares = [share(100, 10, 99), share(9, 11, 1)]
    session = NvmlSession(Nvml(FakeNvml(one, other)), monotonic=lambda: 0.0)
    reader = LaneReader(session, queries.FAST, with_processes=True)
    jobs = {"7": [100, 101, 4711], "8": [300], "9": []}
    seven, eight, nine = (JobGpuCollector(session, job_id=job, jobs=lambda: jobs) for job in jobs)

    reader.read()
    first = seven.collect(NOW)
    one.shares += [share(100, 20, 30), share(100, 21, 40), share(101, 21, 25), share(9, 22, 2), share(101, 23, 255)]
    reader.read()
    found = seven.collect(NOW)
    again = seven.collect(NOW)

    assert first.values['job_gpu_sm_ratio{gpu="0"}'] is None
    assert found.values == {
        'job_gpu_processes{gpu="0"}': 2,
        'job_gpu_memory_bytes{gpu="0"}': 3 << 30,
        'job_gpu_sm_ratio{gpu="0"}': 0.65,
    }
    assert again.values == dict.fromkeys(found.values)
    assert again.reasons['job_gpu_sm_ratio{gpu="0"}'] == "failed: no new list of the processes on the GPUs"
    assert eight.collect(NOW).values['job_gpu_memory_bytes{gpu="1"}'] == 5
    assert nine.collect(NOW) == Reading({})


def table_of(gpu: FakeGpu) -> NvmlSession:
    """Return a session whose fast lane was read."""
    session = NvmlSession(Nvml(FakeNvml(gpu)), monotonic=lambda: 0.0)
    LaneReader(session, queries.FAST, with_processes=True).read()
    return session


@pytest.mark.parametrize("sentinel", [None, 2**64 - 1])
def test_memory_that_the_driver_does_not_tell_is_null_and_not_a_number(sentinel: int | None) -> None:
    gpu = FakeGpu()
    gpu.compute, gpu.graphics = [process(100, sentinel), process(101, 7)], []

    found = JobGpuCollector(table_of(gpu), job_id="7", jobs=lambda: {"7": {100, 101}}).collect(NOW)

    key = 'job_gpu_memory_bytes{gpu="0"}'
    assert (found.values[key], found.values['job_gpu_processes{gpu="0"}']) == (None, 2)
    assert found.reasons[key] == "unsupported: the driver does not report the memory of processes"


def test_no_sample_means_idle_only_where_the_gpu_is_idle() -> None:
    idle, busy = FakeGpu(), FakeGpu()
    idle.answers["UtilizationRates"].gpu = 0
    jobs = {"7": [100]}
    key = 'job_gpu_sm_ratio{gpu="0"}'

    at_rest = JobGpuCollector(table_of(idle), job_id="7", jobs=lambda: jobs).collect(NOW)
    unknown = JobGpuCollector(table_of(busy), job_id="7", jobs=lambda: jobs).collect(NOW)

    assert at_rest.values[key] == 0
    assert gpu_shares(table_of(idle), jobs) == {"7": {"0": 0.0}}
    assert gpu_shares(table_of(busy), jobs) == {"7": {"0": None}}
    assert unknown.values[key] is None
    assert unknown.reasons[key].startswith("failed: nvmlDeviceGetProcessUtilization: no new sample")


def test_the_share_that_each_job_has_of_each_gpu_is_told_for_its_energy() -> None:
    busy, jobs = FakeGpu(), {"7": [100, 4711], "8": [101], "9": []}
    busy.shares = [share(100, 10, 99)]
    session = NvmlSession(fake := Nvml(FakeNvml(busy)), monotonic=lambda: 0.0)
    reader = LaneReader(session, queries.FAST, with_processes=True)
    reader.read()
    busy.shares = [share(100, 20, 60), share(101, 20, 30)]
    reader.read()

    assert gpu_shares(session, jobs) == {"7": {"0": 0.6}, "8": {"0": 0.3}, "9": {"0": 0.0}}
    with pytest.raises(CollectorUnavailableError, match="failed: no new list"):
        gpu_shares(NvmlSession(fake), jobs)


def test_a_gpu_that_never_tells_shares_keeps_no_energy_waiting() -> None:
    fake = FakeNvml(FakeGpu())
    fake.refuse("nvmlDeviceGetProcessUtilization", pynvml.NVML_ERROR_NO_PERMISSION)
    session = NvmlSession(Nvml(fake), monotonic=lambda: 0.0)
    LaneReader(session, queries.FAST, with_processes=True).read()

    assert gpu_shares(session, {"7": [100]}) == {"7": {}}


def test_a_process_of_several_mig_instances_is_summed_and_one_in_two_lists_is_not() -> None:
    gpu = FakeGpu()
    gpu.compute = [process(100, 3, instance=1), process(100, 4, instance=2)]
    gpu.graphics = gpu.mps = [process(100, 4, instance=2)]

    found = JobGpuCollector(table_of(gpu), job_id="7", jobs=lambda: {"7": [100]}).collect(NOW)

    assert found.values['job_gpu_memory_bytes{gpu="0"}'] == 7
    assert found.values['job_gpu_processes{gpu="0"}'] == 1


def test_lists_that_are_refused_make_a_jobs_use_unknown() -> None:
    session = NvmlSession(Nvml(fake := FakeNvml(FakeGpu())), monotonic=lambda: 0.0)
    reader = LaneReader(session, queries.FAST, with_processes=True)
    job = JobGpuCollector(session, job_id="7", jobs=lambda: {"7": [100]})
    reader.read()
    before = job.collect(NOW)
    for call in LISTS.values():
        fake.refuse(call, pynvml.NVML_ERROR_UNKNOWN)
    reader.read()
    refused = job.collect(NOW)

    assert refused.values == dict.fromkeys(before.values)
    assert set(refused.reasons.values()) == {"failed: nvmlDeviceGetComputeRunningProcesses: unknown"}
