"""`fedmon node start`, `status` and `stop`, and every verb while the node runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedmon.node.folder import DAEMON, NodeFolder
from tests.node.jobs_real import Program
from tests.node.owner.owner_desks import made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, fedmon, plain_environment
from tests.support.raw_researcher import RawResearcher
from tests.support.requirements import require
from tests.support.waiting import pause, wait_until


@pytest.fixture(scope="module")
def kept(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = made_folder(tmp_path_factory.mktemp("running") / "n", url=lasting_broker.url)
    with NodeProcess(folder) as started:
        yield started


@pytest.fixture
def running(kept: NodeProcess) -> NodeProcess:
    """The module's node, started again if a test stopped it; it obeys only researchers that a test allowed."""
    if not kept.alive():
        kept.start()
    kept.wait_online()
    return kept


@pytest.fixture
def folder(tmp_path: Path, lasting_broker: Broker) -> Path:
    return made_folder(tmp_path / "n", node_id="hospital-b", url=lasting_broker.url)


def test_a_node_starts_says_how_it_is_and_stops(
    folder: Path, lasting_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "queue.py").write_text("raise SystemExit('imported from the folder where a node was started')")
    with NodeProcess(folder, by_verb=True) as process, Program() as bystander:
        process.wait_online()
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        libraries = Path(f"/proc/{process.pid}/maps").read_text()
        status = told(folder, "status")
        screen = node(folder, "status").stdout
        second = refused(folder, "start", code=4)
        # A daemon in a container knows its number there, which is that of another process here.
        NodeFolder(folder).lock_file.write_text(f"{bystander.pid} {DAEMON}\n")
        stopped = told(folder, "stop", "--timeout", "60")
        exit_code, is_spared = process.wait(60.0), bystander.tell("burn 0") == ""

    # Nothing of the command line stays in the memory of the daemon.
    assert command[1:6] == [b"-P", b"-m", b"fedmon.node.daemon", b"--dir", str(folder).encode()]
    assert "pydantic" not in libraries
    assert (status["running"], status["live"]["pid"], status["broker"]) == (True, process.pid, lasting_broker.url)
    assert f"running, pid {process.pid}, started " in screen
    assert screen.startswith("needs you  * OBEYS NO RESEARCHER")
    assert "samples_" not in screen
    assert [line for line in screen.splitlines() if len(line) > 80 and str(folder) not in line] == []
    assert f"already running, pid {process.pid}" in second
    assert (stopped["pid"], stopped["was_running"], exit_code) == (process.pid, True, 0)
    assert is_spared
    assert told(folder, "stop")["was_running"] is False
    assert "not running" in node(folder, "status").stdout
    assert not (folder / "control.sock").exists()


def test_a_level_that_there_is_not_is_refused_before_the_start(folder: Path) -> None:
    assert "DEBUG, INFO" in refused(folder, "start", "--log-level", "verbose", code=2)


def test_a_node_of_a_wire_without_runs_says_that_no_plan_runs(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", node={"wire": "fedbiomed4"}, runs={})

    assert told(folder, "status")["runs"]["enabled"] is False
    assert "no plan runs here" in node(folder, "status").stdout


def test_a_stop_from_another_process_namespace_says_where_it_works(running: NodeProcess) -> None:
    elsewhere = ["unshare", "--user", "--map-current-user", "--pid", "--fork"]
    require(subprocess.run([*elsewhere, "true"], check=False).returncode == 0, "unshare makes no process namespace")

    stop = [*elsewhere, sys.executable, "-m", "fedmon", "node", "stop", "--dir", str(running.folder)]
    ran = subprocess.run(stop, env=plain_environment(), capture_output=True, text=True, check=False)

    assert (ran.returncode, running.alive()) == (4, True)
    assert "runs in another process namespace: stop it there" in ran.stderr


def test_a_node_without_a_broker_says_why_it_is_not_connected(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", url="mqtt://127.0.0.1:1")
    with NodeProcess(folder) as process:
        wait_until(lambda: process.live().get("last_error"))
        status = told(folder, "status")
        screen = node(folder, "status").stdout

    assert "127.0.0.1:1" in status["live"]["last_error"]
    assert "NOT CONNECTED" in screen


def test_datasets_and_plans_are_kept_through_the_running_node_as_through_the_stopped_one(
    running: NodeProcess, tmp_path: Path
) -> None:
    folder, own = running.folder, b"rate = 0.5\n"
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "p.py").write_bytes(own)
    added = told(folder, "dataset", "add", str(tmp_path / "a.csv"), "--name", "A", "--tags", "t")
    plan = told(folder, "plan", "register", str(tmp_path / "p.py"))["plan"]
    checked = wait_until(lambda: (shown := told(folder, "plan", "show", "p")["plan"])["checked"] and shown)
    errors = [told(folder, "dataset", "show", "B", code=3), told(folder, "plan", "show", "B", code=3)]
    told(folder, "stop", "--timeout", "60")
    assert running.wait(60) == 0

    assert told(folder, "dataset", "list")["datasets"] == [added["dataset"]]
    assert (plan["status"], checked["problem"], len(checked["minified_sha256"])) == ("approved", "", 64)
    assert [error["error"]["type"] for error in errors] == ["NotFoundError", "NotFoundError"]
    assert told(folder, "dataset", "show", "B", code=3) == errors[0]
    assert told(folder, "audit", "verify")["ok"] is True


def test_refused_researchers_wait_until_they_are_allowed_also_past_a_restart(
    running: NodeProcess, lasting_broker: Broker
) -> None:
    folder = running.folder

    def waiting() -> list[dict[str, Any]]:
        found = told(folder, "requests")["researchers"]
        return [each for each in found if each["researcher_id"].startswith("researcher-")]

    with RawResearcher(lasting_broker, "researcher-1") as one, RawResearcher(lasting_broker, "researcher-2") as two:
        replies = [asker.ask("ping") for asker in (one, one, two)]
        before, screen = waiting(), node(folder, "requests").stdout
        status = node(folder, "status").stdout
        ambiguous = refused(folder, "requests", "allow", "researcher", code=4)
        told(folder, "requests", "allow", "researcher-1")
        assert one.ask("ping")["command"] == "pong"
        other = two.ask("ping")["reason"]
        told(folder, "stop", "--timeout", "60")
        assert running.wait(60) == 0

    assert {reply["code"] for reply in replies} == {"refused"}
    assert replies[0]["reason"] == (
        "node hospital-a does not obey researcher researcher-1 (it obeys no researcher); "
        "its owner would allow it with: fedmon node policy allow researcher-1"
    )
    assert "obeys other researchers only" in other
    assert [(each["researcher_id"], each["times"]) for each in before] == [("researcher-2", 1), ("researcher-1", 2)]
    assert all(each["first"] <= each["last"] for each in before)
    assert ["researcher-1", "2", "x"] in [line.split()[:3] for line in screen.splitlines()]
    assert "fedmon node requests allow RESEARCHER" in screen
    assert "* researcher researcher-2 was refused 1 time, last " in status
    assert "researcher-1, researcher-2" in ambiguous
    assert [(each["researcher_id"], each["times"]) for each in waiting()] == [("researcher-2", 2)]


def test_a_daemon_that_does_not_stop_is_named_and_never_waited_for_without_end(running: NodeProcess) -> None:
    pause(running.pid)
    try:
        message = refused(running.folder, "stop", "--timeout", "0.3", code=6)
        forced = refused(running.folder, "stop", "--timeout", "0.3", "--force", code=6)
    finally:
        running.signal(signal.SIGCONT)
    running.wait(60)

    assert f"(pid {running.pid}) still runs after 0.3 s" in message
    assert f"end it with: fedmon node stop --force --dir {running.folder}\n" in message
    assert f"kill -9 {running.pid}" in forced


def test_shells_at_the_same_time_on_a_stopped_node_all_succeed(folder: Path, tmp_path: Path) -> None:
    for n in range(4):
        (tmp_path / f"{n}.csv").write_text("x\n1\n")

    def add(n: int) -> int:
        words = ("dataset", "add", str(tmp_path / f"{n}.csv"), "--name", str(n), "--tags", f"t{n}")
        return fedmon("node", *words, "--dir", str(folder)).returncode

    with ThreadPoolExecutor(4) as shells:
        codes = list(shells.map(add, range(4)))

    assert codes == [0, 0, 0, 0]
    assert [dataset["name"] for dataset in told(folder, "dataset", "list")["datasets"]] == ["0", "1", "2", "3"]


def test_a_folder_that_is_in_use_names_its_holder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmon.node.owner.cli.shell.REACH_WITHIN_S", 1.0)
    with NodeFolder.open(folder).hold("a long backup"):
        message = refused(folder, "plan", "list", code=4)

    assert f"in use by a long backup (pid {os.getpid()})" in message


def test_a_folder_open_to_others_is_refused_by_every_verb(folder: Path) -> None:
    folder.chmod(0o755)

    for words in (("start",), ("stop",), ("plan", "list")):
        assert f"chmod 700 {folder}" in refused(folder, *words, code=1)


def test_a_listing_loads_nothing_that_it_does_not_use(folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fedmon", "node", "dataset", "list", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines()}

    assert loaded & {"paho", "psutil", "pynvml", "requests", "tomlkit", "python_minifier", "rich", "asyncio"} == set()
    assert "fedmon.researcher" not in ran.stderr
