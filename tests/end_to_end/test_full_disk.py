"""A node whose disk is full while it cannot reach anybody: what it measures waits in memory, and nothing is lost."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

from fedmon.common.settings import ResearcherSettings
from fedmon.common.store.recording import Recording
from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.node_process import NO_RUNS, NodeProcess, write_node_folder
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until


def live(node: NodeProcess) -> dict[str, Any]:
    done = fedmon_here("node", "status", "--dir", str(node.folder), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["live"]
    return found


def adds_up(counters: dict[str, int]) -> bool:
    parts = ("samples_open", "samples_recorded", "samples_waiting", "samples_never_recorded")
    return counters["samples_taken"] == sum(counters[name] for name in parts)


def limit_files(node: NodeProcess, size_bytes: int) -> None:
    """Let no file of the node grow beyond a size, as on a full disk."""
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def stored(path: Path) -> list[int]:
    with Recording(path, read_only=True) as recording:
        return [seq for batch in recording.read(stream="host") for seq in range(batch.seq, batch.last_seq + 1)]


def test_a_full_disk_during_an_outage_loses_nothing_and_everything_adds_up(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(
        tmp_path / "ward",
        node_id="ward",
        url=mosquitto.url,
        runs=NO_RUNS,
        metrics={"interval_s": 0.2, "min_interval_s": 0.2},
    )
    store = tmp_path / "store"
    settings = ResearcherSettings(id="anna", broker=mosquitto.settings, folder=tmp_path / "anna")
    with NodeProcess(folder) as node, Federation(settings=settings) as anna, anna.record(store) as record:
        wait_until(lambda: record.counts.stored >= 5, 20, what="first samples")
        mosquitto.stop()
        limit_files(node, 1)
        wait_until(lambda: live(node)["recording"] not in ("on", "off"), 20, what="the full disk to be noticed")
        wait_until(lambda: live(node)["counters"]["samples_waiting"] >= 10, 20, what="samples in memory")
        full = live(node)
        limit_files(node, resource.RLIM_INFINITY)
        mosquitto.start()

        last = full["counters"]["samples_taken"] + 5
        wait_until(lambda: record.counts.stored > last, 40, what="what waited in memory")
        wait_until(lambda: live(node)["recording"] == "on", 40, what="recording to go on")
        after = live(node)
        lost = record.counts.lost

    assert adds_up(full["counters"])
    assert adds_up(after["counters"])
    assert (after["counters"]["samples_never_recorded"], lost) == (0, 0)
    numbers = stored(store)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
