"""A node that runs out of file descriptors or of disk: its owner stays in command, and all of it goes on afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedmon.node.runs.folder import JobFolder
from tests.end_to_end.run_sites import SHA256, Site, made, running
from tests.support.brokers import Broker
from tests.support.listener import Listener
from tests.support.node_process import NO_RUNS, NodeProcess, write_node_folder
from tests.support.raw_researcher import RawResearcher, plan_fields
from tests.support.record_process import stored
from tests.support.requirements import require
from tests.support.shell import limit_files
from tests.support.shell_here import document_here, fedmon_here
from tests.support.waiting import wait_until

DISK_BYTES = 16 * 2**20


@contextlib.contextmanager
def short_of_descriptors(node: NodeProcess, *, free: int) -> Iterator[None]:
    """Let the node open ``free`` more files, or as many as it closed below its spare ones if these are more."""
    before, folder = resource.prlimit(node.pid, resource.RLIMIT_NOFILE), Path(f"/proc/{node.pid}/fd")

    def limit() -> int:
        """Return the first number that stays unused, above the spare ones, which count as open; 0 if one was closed."""
        used = {int(name) for name in os.listdir(folder)}
        unused = [number for number in range(len(used) + free + 1) if number not in used]
        with contextlib.suppress(FileNotFoundError):
            spare = max(number for number in used if os.readlink(folder / str(number)) == os.devnull)
            return max(unused[free], spare + 1)
        return 0

    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (wait_until(limit, what="files at rest"), before[1]))
    try:
        yield
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Make a file system of its own."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", path], check=False)
    require(mounted.returncode == 0, "no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path) -> Path:
    """Leave no page of a file system free."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def sandbox(site: Site) -> str | None:
    found: str | None = site.owner("status")["live"]["sandbox"]
    return found


def test_an_owner_commands_a_node_that_may_open_no_more_files(mosquitto: Broker, tmp_path: Path) -> None:
    folder = made(tmp_path / "north", mosquitto, runs=NO_RUNS)
    with NodeProcess(folder) as node:
        node.wait_online()
        with short_of_descriptors(node, free=0):
            status = fedmon_here("node", "status", "--dir", str(folder))
            during = fedmon_here("node", "plan", "reject", SHA256, "--dir", str(folder))
        rejected = fedmon_here("node", "plan", "reject", SHA256, "--dir", str(folder)) if during.returncode else during
        after = fedmon_here("node", "status", "--dir", str(folder))

        assert [(done.returncode, done.stderr) for done in (status, rejected, after)] == [(0, "")] * 3, node.log()
        assert during.returncode == 0 or "Too many open files" in during.stderr
        assert "1 rejected" in after.stdout
        assert "Exception in thread" not in node.log(), node.log()


@pytest.mark.parametrize("is_told", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["told", "by itself"])
def test_a_sandbox_that_was_not_found_is_looked_for_again(mosquitto: Broker, tmp_path: Path, is_told: bool) -> None:
    folder = made(tmp_path / "north", mosquitto)
    with running(NodeProcess(folder), mosquitto) as site, mosquitto.researcher(tmp_path) as alice:
        node = site.node
        first = wait_until(lambda: sandbox(site), what="the sandbox")
        with short_of_descriptors(node, free=4):
            with (folder / "node.toml").open("a") as file:
                file.write('\n[runs]\ndevices = ["/dev/null"]\n')  # another sandbox, so that it is tried anew
            node.signal(signal.SIGHUP)
            words = ("node", "status", "--dir", str(folder))
            wait_until(lambda: "NONE CAN RUN" in fedmon_here(*words).stdout, what="the look that fails")
            wait_until(lambda: "north" in alice.nodes().online, what="the node to be online")
            run = alice.run(f"sha256:{SHA256}", tags=["cells"])
            wait_until(lambda: run.states()["north"].is_over, what="the refusal")
            refused = run.states()["north"]
        if is_told:
            node.signal(signal.SIGHUP)

        within_s = 30 if is_told else 100  # by itself, it looks again after a minute
        assert wait_until(lambda: sandbox(site), within_s, what="the sandbox, once there are descriptors") == first
        assert (refused.state, "oo many open files" in refused.reason or refused.reason) == ("no-sandbox", True)
        assert site.outcome(site.run())["job"]["state"] == "succeeded"


def test_a_full_disk_skips_no_step_and_is_logged_once(mosquitto: Broker, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = made(disk / "north", mosquitto, metrics={"enabled": False})
        node = NodeProcess(folder)
        node.output = tmp_path / "node.out"
        with running(node, mosquitto) as site, Listener(mosquitto) as listener:
            job = JobFolder(folder / "runs" / (job_id := site.run(seconds=60)))
            wait_until(lambda: len(list(job.events())) >= 3, what="a report of the plan")
            keeper = job.keeper()
            assert keeper is not None
            plan = psutil.Process(keeper.pid).children(recursive=True)
            filler = fill(disk)
            wait_until(
                lambda: site.researcher.answered() and "later messages could not be written" in node.log(),
                what="the full disk in the log",
            )

            os.kill(keeper.pid, signal.SIGKILL)
            wait_until(lambda: not any(map(psutil.Process.is_running, plan)), what="the end of what it left")
            wait_until(lambda: f"job {job_id} is tried again" in node.log(), what="its unwritten end")
            while_full, status = node.log(), fedmon_here("node", "status", "--dir", str(folder)).stdout
            told = wait_until(lambda: listener.logs("north"), what="a log record that left")
            filler.unlink()
            lost = site.outcome(job_id)["job"]["state"]
            stopped = node.stop()
        verified = document_here("node", "audit", "verify", "--dir", folder)

    assert (lost, stopped, verified["ok"]) == ("lost", 0, True)
    assert "Traceback" not in while_full
    assert "left without a line in the audit, which could not be written" in " ".join(status.split())
    assert any("a path of the node" in record["msg"] for record in told)
    assert str(disk) not in json.dumps(told)
    lines = [line.partition(" ERROR ")[2] for line in while_full.splitlines() if " ERROR " in line]
    assert len(lines) == len(set(lines)) <= 4


def adds_up(counters: dict[str, int]) -> bool:
    parts = ("samples_open", "samples_recorded", "samples_waiting", "samples_never_recorded")
    return counters["samples_taken"] == sum(counters[name] for name in parts)


def test_a_full_disk_refuses_a_plan_with_the_cause_and_the_node_serves_on(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "n", url=mosquitto.url)
    with NodeProcess(folder) as node, RawResearcher(mosquitto) as raw:
        wait_until(raw.answered, what="the node to answer")
        limit_files(node.pid, 40_000)

        reply = raw.ask("approval", **plan_fields("x = '" + "y" * 60_000 + "'\n"))

        assert (reply["command"], reply["code"]) == ("error", "failed")
        assert "cannot write its records" in reply["reason"]
        assert str(folder) not in reply["reason"]
        assert raw.ask("ping")["command"] == "pong"


def test_settings_that_a_full_disk_keeps_out_of_the_audit_are_not_applied(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "ward", url=mosquitto.url)
    with NodeProcess(folder) as node, mosquitto.researcher(tmp_path, "anna") as anna:
        wait_until(lambda: anna.ping(timeout_s=5.0).ok, what="the node")
        write_node_folder(folder, url=mosquitto.url, researchers=["berta"])
        with Listener(mosquitto) as listener:
            limit_files(node.pid, 1)
            node.signal(signal.SIGHUP)
            wait_until(
                lambda: any("settings stay as they were" in one["msg"] for one in listener.logs("ward")),
                what="the error in the log",
            )
        limit_files(node.pid, resource.RLIM_INFINITY)
        while_full = anna.ping(timeout_s=30.0).ok
        node.signal(signal.SIGHUP)
        wait_until(lambda: not anna.ping(timeout_s=5.0).ok, what="the new settings")

    assert list(while_full) == ["ward"]


def test_a_full_disk_during_an_outage_loses_nothing_and_everything_adds_up(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "ward", url=mosquitto.url, metrics={"interval_s": 0.2, "min_interval_s": 0.2})
    store = tmp_path / "store"
    with NodeProcess(folder) as node, mosquitto.researcher(tmp_path, "anna") as anna, anna.record(store) as record:
        wait_until(lambda: record.counts.stored >= 5, what="first samples")
        mosquitto.stop()
        limit_files(node.pid, 1)
        wait_until(lambda: node.live()["recording"] not in ("on", "off"), what="the full disk to be noticed")
        wait_until(lambda: node.live()["counters"]["samples_waiting"] >= 10, what="samples in memory")
        full = node.live()
        assert "samples are not stored: " in fedmon_here("node", "status", "--dir", str(folder)).stdout
        limit_files(node.pid, resource.RLIM_INFINITY)
        mosquitto.start()

        last = full["counters"]["samples_taken"] + 5
        wait_until(lambda: record.counts.stored > last, what="what waited in memory")
        wait_until(lambda: node.live()["recording"] == "on", what="recording to go on")
        after = node.live()
        lost = record.counts.lost

    assert adds_up(full["counters"])
    assert adds_up(after["counters"])
    assert (after["counters"]["samples_never_recorded"], lost) == (0, 0)
    numbers = [seq for _, seq in stored(store)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
