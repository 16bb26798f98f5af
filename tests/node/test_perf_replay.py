"""The collectors with a perf that prints what it is told: hardware events, gaps, and every way to fail."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from fedmon.common.backoff import Backoff
from fedmon.common.metrics.sample import Instant
from fedmon.common.settings.values import PerfGroup, PerfSettings
from fedmon.node.collectors.base import Reading, Roots
from fedmon.node.job.wrapper import SIGNALS
from fedmon.node.perf.collector import PerfCollector, PerfJobCollector, PerfSession
from fedmon.node.perf.events import PerfScope
from fedmon.node.perf.source import MACHINE, PerfSource
from tests.support.full_disk import limited
from tests.support.machine_tree import write_tree
from tests.support.requirements import require
from tests.support.waiting import wait_until

REPLAY = Path(__file__).parents[1] / "data" / "perf" / "replay_perf"
RECORDED = REPLAY.parent
NOW = Instant(t=0.0, mono=1e9)
BROADWELL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 79\nmodel name\t: Xeon\n"


class Replay:
    """A program perf in a folder of its own, its answers, and a machine that it stands on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = REPLAY.read_text().partition("\n")[2]
        self.perf = folder / "perf"
        self.perf.write_text(f"#!{sys.executable} -SEI\n{program}")
        self.perf.chmod(0o755)
        write_tree(folder / "proc", {"cpuinfo": BROADWELL, "10/stat": f"10 (job) S{' 1' * 30}\n"})
        self.answers()

    def answers(self, *, counts: Mapping[str, object] | None = None, **rest: object) -> None:
        document = msgspec.json.encode({"counts": counts or {}, **rest})
        temporary = self.folder / "answers.new"
        temporary.write_bytes(document)
        temporary.replace(self.folder / "answers.json")

    def does(self, pattern: str, instead: str) -> None:
        """Have the shell do something else when perf is called with arguments like the pattern."""
        answering = self.perf.rename(self.folder / "answering")
        self.perf.write_text(f'#!/bin/sh\ncase "$*" in {pattern}) {instead};; *) exec "{answering}" "$@";; esac\n')
        self.perf.chmod(0o755)

    def source(self, *groups: PerfGroup, interval_s: float = 0.1) -> PerfSource:
        settings = PerfSettings(enabled=True, command=str(self.perf), groups=groups, interval_s=interval_s)
        return PerfSource(settings, roots=Roots(proc=self.folder / "proc", sys=self.folder))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls.txt").read_text().splitlines()


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program that gets no processor for some seconds be waited for."""
    monkeypatch.setattr("fedmon.node.perf.source._TIMEOUT_S", 60.0)
    monkeypatch.setattr("fedmon.node.perf.collector._LAST_INTERVAL_S", 60.0)


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    return Replay(tmp_path)


@contextmanager
def counting(source: PerfSource) -> Iterator[PerfCollector]:
    with closing(PerfCollector(source)) as collector:
        collector.collect(NOW)
        yield collector
    assert collector._session.pid is None


def next_reading(collector: PerfCollector | PerfJobCollector) -> Reading:
    return reading_with(collector, lambda reading: bool(reading.values))


def reading_with(
    collector: PerfCollector | PerfJobCollector,
    wanted: Callable[[Reading], bool],
    clock: Callable[[], Instant] = lambda: NOW,
) -> Reading:
    def look() -> Reading | None:
        reading = collector.collect(clock())
        return reading if wanted(reading) else None

    return wait_until(look, what="a reading of perf")


def test_hardware_events_and_what_follows_from_them_are_told(replay: Replay) -> None:
    replay.answers(
        counts={
            "cycles": 2000, "instructions": 3000, "branches": 500, "branch-misses": 5,
            "flops_dp.fp_arith_inst_retired.scalar_double": 10, "flops_dp.fp_arith_inst_retired.128b_packed_double": 20,
            "flops_dp.fp_arith_inst_retired.256b_packed_double": 30, "memory_server.unc_m_cas_count.rd": 5,
            "memory_server.unc_m_cas_count.wr": 7,
        },
        percent=50.0,
    )  # fmt: skip
    with counting(replay.source("cycles", "branches", "flops_dp", "memory")) as collector:
        values = next_reading(collector).values
        report = collector.probe()

    seconds = values["perf_counted_seconds_total"]
    assert seconds is not None
    intervals = round(seconds / 0.1)
    assert values['perf_events_total{group="cycles",event="cycles"}'] == 2000 * intervals
    assert values["perf_instructions_per_cycle"] == pytest.approx(1.5)
    assert values["perf_branch_miss_ratio"] == pytest.approx(0.01)
    assert values['perf_flops_per_second{precision="double"}'] == pytest.approx((10 + 2 * 20 + 4 * 30) / 0.1)
    assert values['perf_vectorization_ratio{precision="double"}'] == pytest.approx(50 / 60)
    assert values["perf_memory_bandwidth_bytes_per_second"] == pytest.approx(64 * 12 / 0.1)
    assert values['perf_running_ratio{group="cycles"}'] == pytest.approx(0.5)
    assert values["perf_starts_total"] == 1
    assert {name: reason for name, reason in report.items() if reason is not None} == {}


def test_each_group_is_tried_before_perf_is_started_for_good(replay: Replay) -> None:
    replay.answers(counts={"branch-misses": "<not supported>", "cache-misses": "<not counted>"})
    with counting(replay.source("cycles", "branches", "cache")) as collector:
        values = next_reading(collector).values
        report = collector.probe()

    tried, started = replay.calls[:-1], replay.calls[-1]
    assert len(tried) == 4
    assert all(" -I " not in call and call.endswith("/true") for call in tried)
    assert "{cycles:u,instructions:u}" in started
    assert "branch" not in started
    assert "perf_branch_miss_ratio" not in values
    assert str(report["perf_branch_miss_ratio"]).startswith("unsupported: branch-misses is not supported")
    assert str(report["perf_cache_miss_ratio"]).startswith("unsupported: cache-misses is not counted together")
    assert report["perf_instructions_per_cycle"] is None


def test_an_event_that_is_not_counted_is_null_with_a_reason_and_its_total_goes_on(replay: Replay) -> None:
    with counting(replay.source("cycles", interval_s=0.1)) as collector:
        next_reading(collector)
        replay.answers(counts={"instructions": "<not counted>"})
        collector._session.attach_again()
        gapped = reading_with(collector, lambda reading: bool(reading.reasons))
        replay.answers()
        collector._session.attach_again()
        again = reading_with(collector, lambda reading: bool(reading.values.get("perf_instructions_per_cycle")))

    name = 'perf_events_total{group="cycles",event="instructions"}'
    assert gapped.values[name] is None
    assert gapped.reasons[name].startswith("failed: not counted")
    assert gapped.values["perf_instructions_per_cycle"] is None
    assert gapped.reasons["perf_instructions_per_cycle"] == gapped.reasons[name]
    assert (gapped.values['perf_events_total{group="cycles",event="cycles"}'] or 0) >= 200
    assert (again.values[name] or 0) >= 200
    assert again.values["perf_starts_total"] == 3


def test_a_collector_says_when_its_probe_would_answer_otherwise(replay: Replay) -> None:
    with counting(replay.source()) as collector:
        collector.wait_probed(10.0)
        changed = collector.probe_changed
        report = collector.probe()
        changed_since = collector.probe_changed

    assert changed
    assert report["perf_events_total"] is None
    assert not changed_since


def test_a_ratio_over_nothing_is_null_with_a_reason(replay: Replay) -> None:
    replay.answers(counts={"cycles": 0, "instructions": 0})
    with counting(replay.source("cycles")) as collector:
        reading = next_reading(collector)

    assert reading.values["perf_instructions_per_cycle"] is None
    assert reading.reasons["perf_instructions_per_cycle"].startswith("failed: nothing happened")
    assert reading.values['perf_events_total{group="cycles",event="cycles"}'] == 0


def test_a_zero_that_comes_from_missing_rights_is_null(replay: Replay) -> None:
    user = (RECORDED / "user.txt").read_text()
    assert "0;;context-switches:u" in user
    program = replay.perf.read_text().replace(
        "events.append((name[1] if name else event))", 'events.append(event + ":u")'
    )
    replay.perf.write_text(program)
    replay.answers(counts={"context-switches": 0, "page-faults": 98})
    with counting(replay.source()) as collector:
        reading = next_reading(collector)

    switches = 'perf_events_total{group="software",event="context-switches"}'
    assert reading.values[switches] is None
    assert reading.reasons[switches].startswith("no permission: ")
    assert reading.values['perf_events_total{group="software",event="page-faults"}'] == 98 * round(
        (reading.values["perf_counted_seconds_total"] or 0) / 0.1
    )


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("forbidden.txt", "no permission: kernel.perf_event_paranoid is 2; perf needs CAP_PERFMON for this"),
        ("no_pmu.txt", "unsupported: perf says: event syntax error: "),
        ("no_cycles.txt", "unsupported: perf says: Error: The cycles:u event is not supported."),
        ("no_process.txt", "failed: perf says: Problems finding threads of monitor"),
        ("", "unsupported: "),
    ],
)
def test_a_perf_that_refuses_everything_leaves_a_reason(replay: Replay, recorded: str, expected: str) -> None:
    write_tree(replay.folder, {"proc/sys/kernel/perf_event_paranoid": "2\n"})
    said = (RECORDED / recorded).read_text() if recorded else None
    replay.answers(default="<not supported>", say=said)
    with counting(replay.source("cycles", "l2")) as collector:
        assert collector.wait_probed(60.0)
        reading = next_reading(collector)
        report = collector.probe()

    assert dict(reading.values) == {"perf_counted_seconds_total": None}
    assert reading.reasons["perf_counted_seconds_total"].startswith(expected)
    assert {str(reason).startswith(expected) for reason in report.values()} == {True}
    assert {"perf_events_total", "perf_instructions_per_cycle", "perf_l2_bandwidth_bytes_per_second"} <= set(report)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_missing_perf_says_what_to_install_and_a_closed_one_is_named(replay: Replay, *, is_there: bool) -> None:
    replay.perf.chmod(0o644) if is_there else replay.perf.unlink()
    with counting(replay.source("cycles")) as collector:
        reason = next_reading(collector).reasons["perf_counted_seconds_total"]

    assert reason == f"no permission: {replay.perf}" if is_there else re.match("not found: .* linux-perf", reason)


@contextmanager
def running(replay: Replay, *, interval_s: float = 0.1, patience_s: float = 20.0) -> Iterator[PerfSession]:
    source = replay.source("cycles", interval_s=interval_s)
    made = PerfSession(
        source,
        prepare=lambda stopping: source.plan(PerfScope.HOST, whole_machine=True, stopping=stopping),
        target=lambda: [MACHINE],
        name="test-perf",
        backoff=Backoff(0.05, longest_s=0.1),
        patience_s=patience_s,
    )
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize(
    ("last_words", "reason"),
    [("Segmentation weather\n", "perf says: Segmentation weather"), ("", "perf ended with status 3")],
)
def test_a_perf_that_dies_is_named_and_started_again(replay: Replay, last_words: str, reason: str) -> None:
    replay.answers(die_after=1, last_words=last_words, status=3)
    with running(replay) as perf:
        problem = wait_until(lambda: perf.problem)
        wait_until(lambda: perf.starts >= 3)
        replay.answers()
        wait_until(lambda: perf.attached_at is not None and perf.problem is None)
        assert perf.totals is not None
        first = wait_until(perf.totals.take, what="counts")
        wait_until(perf.totals.take, what="the next counts")

    assert problem == f"failed: {reason}"
    assert (first.values['perf_events_total{group="cycles",event="cycles"}'] or 0) >= 200


def test_a_perf_that_prints_nothing_leaves_a_reason(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmon.node.perf.collector._SILENCE_S", 0.5)
    replay.answers(mute=True)
    with counting(replay.source("cycles")) as collector:
        reason = next_reading(collector).reasons["perf_counted_seconds_total"]
        report = collector.probe()

    assert reason == "failed: perf has printed nothing for 1 s" == report["perf_events_total"]


def test_a_perf_that_does_not_end_when_asked_is_killed(replay: Replay) -> None:
    replay.answers(deaf=True)
    with running(replay, patience_s=0.3) as perf:
        pid = wait_until(lambda: perf.pid if perf.attached_at is not None and perf.pid else 0)
        perf.stop()

    assert not Path(f"/proc/{pid}").exists()


def test_a_perf_can_be_ended_though_a_node_and_a_tool_block_the_signals_of_users(replay: Replay) -> None:
    replay.does("*--log-fd*", "exec sleep 60")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        with running(replay, interval_s=60.0, patience_s=60.0) as perf:
            wait_until(lambda: perf.pid and Path(f"/proc/{perf.pid}/comm").read_text() == "sleep\n", what="perf")
            assert perf.end(60.0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_perf_counts_beside_more_than_1024_open_files(replay: Replay) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    require(hard == resource.RLIM_INFINITY or hard >= 2048, "so many files may not be opened here")
    with limited(resource.RLIMIT_NOFILE, 2048), ExitStack() as opened:
        for _ in range(1024):
            opened.enter_context(Path(os.devnull).open())
        with counting(replay.source("cycles")) as collector:
            assert next_reading(collector).values['perf_events_total{group="cycles",event="cycles"}']


def test_no_descriptor_stays_open(replay: Replay) -> None:
    gc.collect()  # what earlier tests left closes its files late
    before = len(os.listdir("/proc/self/fd"))
    replay.answers(die_after=1)
    with running(replay) as perf:
        wait_until(lambda: perf.starts >= 3)

    assert len(os.listdir("/proc/self/fd")) == before


def test_collecting_and_closing_never_wait_while_groups_are_tried(replay: Replay, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    program = replay.perf.read_text()
    replay.perf.write_text(program.replace("events = []", f"open({str(gate)!r}).read()\nevents = []", 1))
    collector = PerfCollector(replay.source("cycles", "branches", "cache"))
    try:
        assert dict(collector.collect(NOW).values) == {}
        assert dict(collector.collect(NOW).values) == {}
        assert collector.probe()["perf_events_total"] == "first sample: perf's events are still being tried out"
        assert not collector.wait_probed(0.01)
        wait_until((tmp_path / "calls.txt").exists, what="the first trial")
    finally:
        stopper = threading.Thread(target=collector.close)
        stopper.start()
        wait_until(lambda: collector._session._stopping)
        gate.write_text("")
        stopper.join()

    assert len(replay.calls) == 1


def test_a_job_whose_processes_are_gone_is_not_counted(replay: Replay) -> None:
    with closing(PerfJobCollector(replay.source(), job="7", pids=lambda: [4_194_303])) as collector:
        reading = next_reading(collector)

    assert dict(reading.reasons) == {"perf_counted_seconds_total": "not found: no process of the job lives"}
    assert not any(" -I " in call for call in replay.calls)


def test_without_the_right_to_count_its_cgroup_the_processes_of_a_job_are_counted_and_looked_for_again(
    replay: Replay,
) -> None:
    replay.does('*" -a "*', "echo Operation not permitted >&2; exit 255")
    replay.answers(die_after=1, status=0)
    with closing(PerfJobCollector(replay.source(), job="7", pids=lambda: [10], cgroup="job_7")) as collector:
        reading = reading_with(collector, lambda reading: (reading.values.get("perf_starts_total") or 0) >= 2)

    assert reading.reasons == {}
    assert replay.calls[-1].endswith(" -p 10")


def test_the_last_sample_of_a_run_holds_the_interval_that_is_under_way(replay: Replay) -> None:
    with counting(replay.source("cycles", interval_s=60.0)) as collector:
        wait_until(lambda: (replay.folder / "calls.txt").exists() and any(" -I " in call for call in replay.calls))
        collector.ending()
        last = next_reading(collector)

    assert last.values['perf_events_total{group="cycles",event="cycles"}'] == 50


def test_the_last_sample_of_a_job_holds_its_last_interval(replay: Replay) -> None:
    pids = [10]
    source = replay.source("cycles", interval_s=60.0)
    with closing(PerfJobCollector(source, job="7", pids=lambda: list(pids))) as collector:
        collector.collect(NOW)
        # The replay has blocked SIGALRM once it has written down its call.
        wait_until(lambda: (replay.folder / "calls.txt").exists() and any(" -I " in call for call in replay.calls))
        pids.clear()
        last, after = collector.collect(NOW), collector.collect(NOW)

    assert last.values['perf_events_total{group="cycles",event="cycles"}'] == 50
    assert dict(after.values) == {}
