"""What a real node measures, as a researcher sees it: the machine, jobs, reported values, and new settings."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from fedmon.common.metrics.series import metric_name
from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.watch import LiveSample, Watch
from tests.node.owner.owner_shell import told
from tests.support.brokers import Broker
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until

ZONE = "class/powercap/intel-rapl:0"
SLOW_S = 60.0


@pytest.fixture(scope="module")
def sys_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that stands in for /sys: one processor package with an energy counter, and its online CPUs."""
    root = tmp_path_factory.mktemp("sys")
    zone = root / ZONE
    zone.mkdir(parents=True)
    for name, text in {"name": "package-0", "energy_uj": "1000000", "max_energy_range_uj": "262143328850"}.items():
        (zone / name).write_text(f"{text}\n")
    online = root / "devices/system/cpu"
    online.mkdir(parents=True)
    (online / "online").write_text("0-1\n")
    return root


@pytest.fixture(scope="module")
def node(lasting_broker: Broker, sys_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node") / "ward"
    metrics = {"interval_s": 0.5, "min_interval_s": 0.2, "sys_root": str(sys_tree)}
    write_node_folder(folder, url=lasting_broker.url, metrics=metrics, energy={"region": "FR"})
    with NodeProcess(folder) as node:
        yield node


@pytest.fixture(scope="module")
def federation(
    lasting_broker: Broker, node: NodeProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    with Federation(lasting_broker.url, researcher_id="anna", folder=tmp_path_factory.mktemp("anna")) as federation:
        wait_until(lambda: federation.ping(timeout_s=1.0).ok, what="the node to answer")
        yield federation


@pytest.fixture
def watch(federation: Federation) -> Iterator[Watch]:
    with federation.monitor() as watch:
        yield watch


@pytest.fixture
def asked(lasting_broker: Broker) -> Iterator[RawResearcher]:
    with RawResearcher(lasting_broker, "bert") as researcher:
        yield researcher


def heard(watch: Watch, wanted: Callable[[LiveSample], bool], *, what: str) -> LiveSample:
    found: list[LiveSample] = []

    def came() -> bool:
        sample = watch.next(timeout_s=1.0)
        if sample is not None and wanted(sample):
            found.append(sample)
        return bool(found)

    wait_until(came, what=what)
    return found[0]


def edit(node: NodeProcess, **sections: dict[str, Any]) -> None:
    file = node.folder / "node.toml"
    document = tomlkit.parse(file.read_text())
    for section, values in sections.items():
        document.setdefault(section, tomlkit.table()).update(values)
    file.write_text(tomlkit.dumps(document))
    node.signal(signal.SIGHUP)


def test_a_node_says_what_it_measures_and_what_not_and_of_what_machine(watch: Watch) -> None:
    heard(watch, lambda sample: sample.stream == "host", what="a sample")
    wait_until(lambda: watch.capabilities, what="the node's answer to the lease")

    (reply,) = watch.capabilities.values()

    assert reply.capabilities["host_load1"] is None
    assert (reply.capabilities["infiniband_receive_bytes_total"] or "").startswith("not found")
    assert reply.hardware is not None
    assert reply.hardware["simulated"] is True
    assert reply.hardware["emission_factor"]["source"]
    assert reply.capabilities["node_emissions_grams_total"] is None
    assert reply.counts["agent_ticks_missed_total"] >= 0


def test_energy_of_a_tree_that_stands_in_grows_as_its_counter_does(watch: Watch, sys_tree: Path) -> None:
    joules = 'rapl_energy_joules_total{zone="package-0"}'
    before = heard(watch, lambda sample: sample.values.get(joules) is not None, what="an energy")
    (sys_tree / ZONE / "energy_uj").write_text("31000000\n")

    after = heard(
        watch, lambda sample: (sample.values.get(joules) or 0) != before.values[joules], what="another energy"
    )

    assert (after.values[joules] or 0) - (before.values[joules] or 0) == 30.0
    assert 'node_energy_joules_total{method="components"}' in after.values


def test_a_job_is_watched_from_its_first_process_to_its_last(node: NodeProcess, watch: Watch) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"]) as job:
        record = told(node.folder, "job", "watch", "batch-7", "--pid", str(job.pid), "--name", "three sleepers")
        sample = heard(watch, lambda sample: sample.stream == "job-batch-7", what="a sample of the job")
        other = heard(watch, lambda other: other.stream != sample.stream, what="a sample of another stream")
        subprocess.run(["pkill", "-P", str(job.pid)], check=True)
        job.wait(60)

    def ended() -> Any:
        found = [one for one in told(node.folder, "job", "list")["jobs"] if one["job_id"] == "batch-7"]
        return found[0] if found and found[0]["ended"] else None

    record_at_end = wait_until(ended, what="the end of the job")

    assert sample.values["job_processes"] == 3.0
    assert other.stream == "host"
    assert record["job"]["name"] == "three sleepers"
    assert record_at_end["reason"] == "all of its processes have ended"


def test_values_that_a_program_reports_come_on_the_same_time_axis(node: NodeProcess, watch: Watch) -> None:
    host = heard(watch, lambda sample: sample.stream == "host", what="a sample")
    told(node.folder, "add-scalar", "loss", "-0.25", "--step", "3")

    sample = heard(watch, lambda sample: sample.stream == "user", what="the value")
    told(node.folder, "add-scalar", "loss", "inf")

    assert sample.values['user_value{name="loss"}'] == -0.25
    assert sample.values['user_step{name="loss"}'] == 3.0
    assert 0 <= sample.mono - host.mono < 60


def test_other_settings_hold_from_the_next_tick_on_and_break_no_numbering(node: NodeProcess, watch: Watch) -> None:
    before = heard(watch, lambda sample: sample.stream == "host", what="a sample")
    edit(node, metrics={"per_core": True, "interval_s": 0.2}, policy={"metrics": ["host_cpu_*", "host_load*"]})

    after = heard(
        watch,
        lambda sample: any(key.startswith("host_cpu_core_") for key in sample.values),
        what="the CPUs one by one",
    )
    edit(node, metrics={"per_core": False}, policy={"metrics": ["*"]})
    last = heard(watch, lambda sample: "host_memory_total_bytes" in sample.values, what="everything again")

    assert "INFO fedmon.node.daemon: settings read again" in node.log()
    assert (before.boot, watch.lost) == (after.boot, 0)
    assert before.seq < after.seq < last.seq
    assert {key.partition("{")[0][:8] for key in after.values} <= {"host_cpu", "host_loa"}


def test_settings_that_cannot_be_used_change_nothing_and_are_named(node: NodeProcess, watch: Watch) -> None:
    good = (node.folder / "node.toml").read_text()
    edit(node, metrics={"interval_s": 0.01})
    wait_until(lambda: "the settings stay as they were" in node.log(), what="the refusal")
    (node.folder / "node.toml").write_text(good)

    heard(watch, lambda sample: sample.stream == "host", what="a sample after all")
    assert "interval_s" in node.log()


def test_switching_metrics_off_and_on_again_goes_on_with_the_same_numbers(
    node: NodeProcess, watch: Watch, asked: RawResearcher
) -> None:
    before = heard(watch, lambda sample: sample.stream == "host", what="a sample")
    read = node.log().count("settings read again")
    edit(node, metrics={"enabled": False})
    wait_until(lambda: node.log().count("settings read again") > read, what="the settings")
    refused = asked.ask("monitor", action="start")
    edit(node, metrics={"enabled": True})

    after = heard(watch, lambda sample: sample.stream == "host", what="a sample again")

    assert (refused["command"], refused["code"]) == ("error", "unsupported")
    assert "switched metrics off" in refused["reason"]
    assert before.boot == after.boot
    assert before.seq < after.seq
    assert (node.folder / "recording.sqlite").exists()


def test_a_lease_speeds_a_slow_node_up_until_it_ends_and_brings_nothing_that_the_owner_keeps_back(
    mosquitto: Broker, tmp_path: Path
) -> None:
    folder = write_node_folder(
        tmp_path / "ward",
        url=mosquitto.url,
        metrics={"interval_s": SLOW_S, "min_interval_s": 0.2},
        policy={"metrics": ["host_load*", "host_cpu_seconds_total"]},
    )
    with (
        Listener(mosquitto, "general/monitoring/#") as listener,
        RawResearcher(mosquitto, "anna") as raw,
        NodeProcess(folder),
    ):
        wait_until(raw.answered, what="the node to answer")
        before = raw.ask("monitor", action="status")

        granted = raw.ask("monitor", action="start", interval_s=0.2, lease_s=8.0)
        wait_until(lambda: sum(len(batch["t"]) for batch in listener.batches("host")) >= 5, what="five samples")
        expired = wait_until(
            lambda: (reply := raw.ask("monitor", action="status"))["interval_s"] == SLOW_S and reply,
            what="the lease to end",
        )

    assert (before["interval_s"], before["lease_s"]) == (SLOW_S, None)
    assert (granted["interval_s"], granted["lease_s"]) == (0.2, 8.0)
    assert expired["streams"] == ["host"]
    batches = listener.batches("host")
    allowed = {"host_load1", "host_load5", "host_load15", "host_cpu_seconds_total"}
    assert {metric_name(key) for batch in batches for key in batch["m"]} == allowed
    assert set(expired["metrics"]) == set(expired["capabilities"]) == allowed
