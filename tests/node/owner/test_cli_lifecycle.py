"""`fedmon node start`, `status` and `stop`, and every verb while the node runs."""

from __future__ import annotations

import hashlib
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.clock import seconds_from_now
from fedmon.common.ids import new_id
from fedmon.common.wire import codec, topics
from fedmon.common.wire.connection import BrokerConnection
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import Ack, Approval, ApprovalReply, Error, Ping, PlanDecision, Pong
from fedmon.node.folder import DAEMON, NodeFolder
from fedmon.node.owner.control import ControlClient, DaemonNotRunningError
from tests.node.owner.owner_desks import PLAN, ask_approval, desk_of, events, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.support.brokers import Broker
from tests.support.node_process import NO_RUNS, NodeProcess, plain_environment
from tests.support.requirements import require
from tests.support.waiting import pause, wait_until

DIGEST = hashlib.sha256(PLAN).hexdigest()


class Asker:
    """A researcher as the wire knows one: asks a node and waits for what it sends."""

    def __init__(self, broker: Broker, researcher_id: str, node_id: str) -> None:
        self._researcher_id, self._node_id = researcher_id, node_id
        self._heard: queue.Queue[Any] = queue.Queue()
        self.transport = BrokerConnection(
            broker.settings,
            client_id=f"{researcher_id}-main",
            subscriptions=[(f"general/researcher/{researcher_id}/#", 1)],
            on_message=lambda _topic, payload, _retained: self._heard.put(codec.decode_reply(payload)),
            on_link=lambda _link: None,
            will=lambda: None,
        )

    def ask(self, kind: type[Request], **values: Any) -> None:
        request = kind(
            researcher_id=self._researcher_id,
            id=new_id(),
            session="s",
            sequence=1,
            expires=seconds_from_now(30),
            **values,
        )
        topic = topics.command(self._researcher_id, self._node_id)
        assert self.transport.publish(topic, codec.encode(request), qos=1)

    def hear(self, kind: type[Any]) -> Any:
        """Return the next message of a kind."""
        while True:
            message = self._heard.get(timeout=10.0)
            if isinstance(message, kind):
                return message


@contextmanager
def asking(broker: Broker, researcher_id: str = "alice", node_id: str = "hospital-a") -> Iterator[Asker]:
    asker = Asker(broker, researcher_id, node_id)
    asker.transport.start()
    asker.transport.wait_connected(5.0)
    try:
        yield asker
    finally:
        asker.transport.stop()


def live(folder: Path) -> dict[str, Any]:
    """Return how the node of a folder is; empty while none runs."""
    try:
        with ControlClient(folder) as client:
            return dict(client.call("status")["live"])
    except DaemonNotRunningError:
        return {}


def wait_online(folder: Path) -> None:
    """Wait until the node of a folder is connected."""
    wait_until(lambda: live(folder).get("connected"), 30.0, what="the connection")


def online(folder: Path) -> dict[str, Any]:
    """Wait until the node of a folder is connected, and return what the shell tells of it."""
    wait_online(folder)
    return told(folder, "status")


@pytest.fixture
def folder(tmp_path: Path, mosquitto: Broker) -> Path:
    return made_folder(tmp_path / "n", url=mosquitto.url, runs=NO_RUNS)


def test_a_node_starts_says_how_it_is_and_stops(folder: Path, mosquitto: Broker) -> None:
    with NodeProcess(folder, by_verb=True) as running:
        status = online(folder)
        screen = node(folder, "status").stdout
        second = refused(folder, "start", code=4)
        stopped = told(folder, "stop")
        exit_code = running.wait(5.0)

    assert (status["running"], status["live"]["pid"], status["broker"]) == (True, running.pid, mosquitto.url)
    assert f"running, pid {running.pid}, started " in screen
    assert screen.startswith("needs you   * OBEYS NO RESEARCHER")
    assert "samples_" not in screen
    assert [line for line in screen.splitlines() if len(line) > 80 and str(folder) not in line] == []
    assert f"already running, pid {running.pid}" in second
    assert (stopped["pid"], stopped["was_running"], exit_code) == (running.pid, True, 0)
    assert told(folder, "stop")["was_running"] is False
    assert "not running" in node(folder, "status").stdout
    assert not (folder / "control.sock").exists()


def test_a_stop_ends_the_process_behind_the_socket_and_no_other(folder: Path) -> None:
    with NodeProcess(folder, by_verb=True) as running, subprocess.Popen(["sleep", "60"]) as bystander:
        wait_online(folder)
        # A daemon in a container knows its number there, which is that of another process here.
        NodeFolder(folder).lock_file.write_text(f"{bystander.pid} {DAEMON}\n")

        stopped = told(folder, "stop")
        exit_code, is_spared = running.wait(5.0), bystander.poll() is None
        bystander.kill()

    assert (stopped["pid"], exit_code, is_spared) == (running.pid, 0, True)


def test_a_stop_from_another_process_namespace_says_where_it_works(folder: Path) -> None:
    elsewhere = ["unshare", "--user", "--map-current-user", "--pid", "--fork"]
    require(subprocess.run([*elsewhere, "true"], check=False).returncode == 0, "unshare makes no process namespace")
    with NodeProcess(folder, by_verb=True) as running:
        wait_online(folder)

        stop = [*elsewhere, sys.executable, "-m", "fedmon", "node", "stop", "--dir", str(folder)]
        ran = subprocess.run(stop, env=plain_environment(), capture_output=True, text=True, check=False)
        told(folder, "stop")
        exit_code = running.wait(5.0)

    assert (ran.returncode, exit_code) == (4, 0)
    assert "runs in another process namespace: stop it there" in ran.stderr


def test_the_daemon_holds_nothing_of_the_command_line_in_its_memory(folder: Path) -> None:
    with NodeProcess(folder, by_verb=True) as running:
        wait_online(folder)
        command = Path(f"/proc/{running.pid}/cmdline").read_bytes().split(b"\0")
        libraries = Path(f"/proc/{running.pid}/maps").read_text()

    assert command[1:5] == [b"-m", b"fedmon.node.daemon", b"--dir", str(folder).encode()]
    assert "pydantic" not in libraries


def test_a_node_without_a_broker_says_why_it_is_not_connected(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", url="mqtt://127.0.0.1:1", runs=NO_RUNS)
    with NodeProcess(folder, by_verb=True):
        wait_until(lambda: live(folder).get("last_error"), 30.0)
        status = told(folder, "status")
        screen = node(folder, "status").stdout

    assert "127.0.0.1:1" in status["live"]["last_error"]
    assert "NOT CONNECTED" in screen


def test_a_daemon_that_does_not_stop_is_named_and_never_waited_for_without_end(folder: Path) -> None:
    with NodeProcess(folder) as running:
        wait_online(folder)
        pause(running.pid)
        message = refused(folder, "stop", "--timeout", "0.3", code=6)
        forced = refused(folder, "stop", "--timeout", "0.3", "--force", code=6)
        running.signal(signal.SIGCONT)
        running.wait(10.0)

    assert f"(pid {running.pid}) still runs after 0.3 s" in message
    assert "--force" in message
    assert f"kill -9 {running.pid}" in forced


def test_a_rule_holds_at_once_in_a_running_node(folder: Path, mosquitto: Broker) -> None:
    with NodeProcess(folder), asking(mosquitto) as alice:
        wait_online(folder)
        alice.ask(Ping)
        before = alice.hear(Error)
        told(folder, "policy", "allow", "alice")
        alice.ask(Ping)
        answered = alice.hear(Pong)
        told(folder, "policy", "deny", "alice")
        alice.ask(Ping)
        after = alice.hear(Error)

    assert (before.code.value, answered.node_id, after.code.value) == ("refused", "hospital-a", "refused")
    assert "fedmon node policy allow alice" in before.reason


def test_a_decision_reaches_the_researcher_without_being_asked_for(folder: Path, mosquitto: Broker) -> None:
    told(folder, "policy", "allow", "alice")
    with NodeProcess(folder), asking(mosquitto) as alice:
        wait_online(folder)
        alice.ask(Approval, name="logistic", sha256=DIGEST, size_bytes=len(PLAN), source=PLAN.decode())
        asked = alice.hear(ApprovalReply)
        shown = told(folder, "plan", "show", asked.plan_id)
        result = told(folder, "plan", "approve", asked.plan_id, "--note", "go on")
        decision = alice.hear(PlanDecision)
        alice.ask(Ack, ids=[decision.id])
        wait_until(lambda: told(folder, "status")["undelivered"] == {})

    assert (shown["source"], shown["plan"]["requested_by"]) == (PLAN.decode(), ["alice"])
    assert (result["tells"], result["plan"]["sha256"]) == (["alice"], DIGEST)
    assert (decision.status.value, decision.note, decision.sha256) == ("approved", "go on", DIGEST)
    assert events(folder).count("plan-decision") == 1


def test_a_decision_made_while_the_node_is_stopped_is_sent_at_its_start(folder: Path, mosquitto: Broker) -> None:
    told(folder, "policy", "allow", "alice")
    with desk_of(folder) as desk:
        plan_id = ask_approval(desk)
    told(folder, "plan", "reject", plan_id, "--note", "no")
    assert told(folder, "status")["undelivered"] == {"alice": 1}

    with asking(mosquitto) as alice, NodeProcess(folder):
        decision = alice.hear(PlanDecision)

    assert (decision.plan_id, decision.status.value, decision.note) == (plan_id, "rejected", "no")


def test_datasets_and_plans_are_kept_through_the_running_node_as_through_the_stopped_one(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "p.py").write_bytes(PLAN)
    with NodeProcess(folder):
        wait_online(folder)
        added = told(folder, "dataset", "add", str(tmp_path / "a.csv"), "--name", "A", "--tags", "t")
        plan = told(folder, "plan", "register", str(tmp_path / "p.py"))["plan"]
        checked = wait_until(lambda: (shown := told(folder, "plan", "show", "p")["plan"])["checked"] and shown)
        errors = [told(folder, "dataset", "show", "B", code=3), told(folder, "plan", "show", "B", code=3)]
        told(folder, "stop")

    assert told(folder, "dataset", "list")["datasets"] == [added["dataset"]]
    assert (plan["status"], checked["problem"], len(checked["minified_sha256"])) == ("approved", "", 64)
    assert [error["error"]["type"] for error in errors] == ["NotFoundError", "NotFoundError"]
    assert told(folder, "dataset", "show", "B", code=3) == errors[0]
    assert told(folder, "audit", "verify")["ok"] is True


def test_shells_at_the_same_time_on_a_stopped_node_all_succeed(folder: Path, tmp_path: Path) -> None:
    for n in range(4):
        (tmp_path / f"{n}.csv").write_text("x\n1\n")

    def add(n: int) -> int:
        words = ("dataset", "add", str(tmp_path / f"{n}.csv"), "--name", str(n), "--tags", f"t{n}")
        return node(folder, *words).returncode

    with ThreadPoolExecutor(4) as shells:
        codes = list(shells.map(add, range(4)))

    assert codes == [0, 0, 0, 0]
    assert [dataset["name"] for dataset in told(folder, "dataset", "list")["datasets"]] == ["0", "1", "2", "3"]


def test_a_folder_that_somebody_keeps_is_said_to_be_his(folder: Path) -> None:
    with NodeFolder.open(folder).hold("a long backup"):
        message = refused(folder, "plan", "list", code=4)

    assert "in use by a long backup (pid " in message


def test_a_folder_open_to_others_is_refused_by_every_verb(folder: Path) -> None:
    folder.chmod(0o755)

    for words in (("start",), ("stop",), ("plan", "list")):
        assert f"chmod 700 {folder}" in refused(folder, *words, code=1)


def test_a_listing_loads_nothing_that_it_does_not_use(folder: Path) -> None:
    import subprocess
    import sys

    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fedmon", "node", "dataset", "list", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines()}

    assert loaded & {"paho", "psutil", "pynvml", "requests", "tomlkit", "python_minifier", "rich", "asyncio"} == set()
    assert "fedmon.researcher" not in ran.stderr
