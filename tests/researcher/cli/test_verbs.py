"""The researcher's verbs, as processes against real nodes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.echo_nodes import presence
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import NEVER_HEARD
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode, log_record, sample
from tests.support.environment import plain_environment, researcher_environment
from tests.support.node_process import NodeProcess, fedmon, write_node_folder
from tests.support.shell import begun
from tests.support.shell_here import document, document_here, fedmon_here
from tests.support.waiting import wait_until

SLOW = "nodes send one every 5 s; wait longer, or add --interval 1"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = Broker("mosquitto", tmp_path_factory.mktemp("broker"))
    folder = tmp_path_factory.mktemp("nodes")
    open_node = write_node_folder(folder / "open", url=broker.url)
    shy_node = write_node_folder(folder / "shy", url=broker.url, researchers=["bob"])
    with NodeProcess(open_node), NodeProcess(shy_node):
        with broker.researcher(folder, "waiter") as fed:
            wait_until(lambda: {"open", "shy"} <= set(fed.nodes()), what="two nodes")
        yield broker.url
    broker.stop()


@pytest.fixture
def environ(url: str, tmp_path: Path) -> dict[str, str]:
    return researcher_environment(url, tmp_path / "r")


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The environment of a researcher without settings."""
    return plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path / "r"))


def test_ping_says_who_refuses_and_ends_with_four(environ: dict[str, str]) -> None:
    told = document(fedmon_here("ping", "--json", environ=environ), code=4)
    allowed = fedmon_here("ping", "--researcher", "bob", environ=environ)
    outcomes = {one["node_id"]: one for one in told["outcomes"]}

    assert allowed.returncode == 0
    assert outcomes["open"]["status"] == "ok"
    assert outcomes["shy"]["status"] == "refused"
    assert "fedmon node policy allow alice" in outcomes["shy"]["reason"]


def test_a_node_that_is_named_and_unknown_ends_with_six_as_where_there_is_none(
    mosquitto: Broker, environ: dict[str, str]
) -> None:
    done = fedmon_here("ping", "--node", "nobody", "--timeout", "30", "--json", environ=environ)
    none = fedmon_here("ping", "--broker", mosquitto.url, "--json", environ=environ)

    assert (done.returncode, none.returncode) == (6, 6)
    assert "never heard of" in json.loads(done.stdout)["outcomes"][0]["reason"]


@pytest.mark.parametrize("words", ["ping", "datasets", "runs stop 0190"])
def test_a_variable_that_is_not_set_names_no_node_and_never_all(words: str, alone: dict[str, str]) -> None:
    done = fedmon_here(*words.split(), "--node", "", "--json", environ=alone)

    assert (done.returncode, "names none" in done.stdout + done.stderr) == (2, True)


def test_a_plan_that_is_no_python_is_refused_before_anything_is_sent(environ: dict[str, str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text("class P(:\n")

    told = document(fedmon_here("plan", "request", str(plan), "--json", environ=environ), code=2)

    assert "plan.py" in told["error"]["message"]


def test_watch_prints_one_document_a_sample(environ: dict[str, str]) -> None:
    done = fedmon_here(
        "watch", "--node", "open", "--interval", "0.2", "--count", "3", "--metric", "host_load1", "--json",
        environ=environ,
    )  # fmt: skip
    samples = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0, done.stderr
    assert len(samples) == 3
    assert all(list(sample["values"]) == ["host_load1"] for sample in samples)


@pytest.mark.parametrize(
    ("asked", "refuses", "said"),
    [
        ([], False, f"no sample came: {SLOW}"),
        ([], True, "no sample came: slow: not obeyed"),
        (["-n", "slo,slow"], False, f"no sample came: slo: {NEVER_HEARD}; {SLOW}"),
    ],
    ids=["slow", "refuses", "a wrong name"],
)
def test_a_watch_without_a_sample_ends_in_time_and_says_why(
    asked: list[str], refuses: bool, said: str, mosquitto: Broker, alone: dict[str, str]
) -> None:
    with EchoNode(mosquitto.port, "slow") as node:
        if refuses:
            node.refuse()
        done = fedmon_here("watch", "--broker", mosquitto.url, "--for", "5", "--json", *asked, environ=alone)

    assert (done.returncode, json.loads(done.stdout)["error"]["message"]) == (6, said)


def test_a_record_that_no_node_answers_says_that_a_monitor_may_not_ask(
    mosquitto: Broker, alone: dict[str, str], tmp_path: Path
) -> None:
    batch = sample("a", 3, [time.time()], {"host_load1": [1.0]})
    with EchoNode(mosquitto.port, "a") as node:
        node.answer = lambda _request: node.publish("general/monitoring/a", batch)
        done = fedmon_here("record", str(tmp_path / "r.fmr"), "-b", mosquitto.url, "--for", "3", environ=alone)

    assert (done.returncode, "no node sends; a monitor of the broker may only watch" in done.stderr) == (6, True)


def test_watch_lists_at_its_end_what_is_absent_and_why(environ: dict[str, str]) -> None:
    words = ("watch", "--node", "open", "--interval", "0.2", "--count", "5", "--absent")

    shown = fedmon_here(*words, environ=environ).stdout.splitlines()

    assert [line for line in shown if " on open: " in line]


@pytest.mark.parametrize("words", ["logs", "metrics serve --port 0", "record {} --interval 0.2"])
def test_verbs_that_go_on_end_in_time_and_name_a_node_that_is_not_known(
    words: str, environ: dict[str, str], tmp_path: Path
) -> None:
    line = (*words.format(tmp_path / "store.fmr").split(), "--for", "1.5", "--json", "-n", "open,opne")

    done = fedmon_here(*line, environ=environ)

    assert (done.returncode, done.stderr) == (0, f"fedmon: nothing from opne: {NEVER_HEARD}\n")


def test_a_record_of_a_node_is_printed_once(mosquitto: Broker, environ: dict[str, str], tmp_path: Path) -> None:
    record = log_record("WARNING", "disk is full")
    out, err = tmp_path / "out", tmp_path / "err"

    def is_printed(node: EchoNode) -> bool:
        node.publish("general/logger/a", record)
        return "disk is full" in out.read_text()

    with (
        EchoNode(mosquitto.port, "a") as node,
        out.open("w") as stdout,
        err.open("w") as stderr,
        begun("logs", "--broker", mosquitto.url, environ=environ, stdout=stdout, stderr=stderr) as following,
    ):
        wait_until(lambda: is_printed(node), what="the record")
        following.send_signal(signal.SIGINT)

    assert "disk is full" not in err.read_text()


def test_a_verb_runs_beside_an_open_notebook_of_the_same_researcher(
    environ: dict[str, str], url: str, tmp_path: Path
) -> None:
    with Federation(url, researcher_id="alice", folder=tmp_path / "r") as notebook:
        done = fedmon("ping", "--node", "open", "--json", environ=environ)

        assert done.returncode == 0, done.stdout
        assert notebook.instance == "main"
        assert "open" in notebook.ping(nodes=["open"]).ok


def test_options_of_forget_may_follow_it(alone: dict[str, str], mosquitto: Broker) -> None:
    options = ("--broker", mosquitto.url, "--timeout", "5", "ghost")
    with EchoNode(mosquitto.port, "a") as a:
        a.publish("general/status/ghost", presence("ghost", 3), retain=True)

        forgotten = fedmon_here("nodes", "forget", *options, environ=alone)
        again = fedmon_here("nodes", "--broker", mosquitto.url, "forget", "ghost", environ=alone)

    assert (forgotten.returncode, forgotten.stdout) == (0, "ghost: cleared at the broker, for all parties\n")
    assert again.returncode == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "plan.py", "--arg", "{"), "--arg '{': no JSON: "),
        (("run", "plan.py", "--arg", "[1]"), "--arg '[1]' is not of the form name=value, and no JSON object"),
        (("run", "plan.py", "--arg", '{"rounds": 3}', "--arg", "=3"), "--arg '=3' is not of the form name=value"),
        (("run", "plan.py", "--inputs", "list.json"), "list.json holds no inputs: JSON that is not an object"),
        (("run", "plan.py", "--inputs", "good.json", "--arg", "x"), "--arg 'x' is not of the form name=value"),
        (("run", "plan.py", "--inputs", "cut.json"), "cut.json holds no inputs: "),
        (("run", "plan.py", "--inputs", "cut.npz"), "cut.npz holds no inputs: "),
        (("watch", "--group", "weather"), "--group 'weather' is not one of "),
    ],
)
def test_wrong_words_are_named_before_anything_is_asked(
    words: tuple[str, ...], message: str, alone: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("list.json", "[1]"), ("good.json", '{"w": 1}'), ("cut.json", '{"w":'), ("cut.npz", "PK")):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)

    done = fedmon_here(*words, environ=alone)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_whoami_needs_no_broker_and_tells_the_id_that_is_kept(alone: dict[str, str], tmp_path: Path) -> None:
    environ = alone | {"FEDMON_BROKER_URL": "mqtt://no-such.invalid"}

    said = document_here("whoami", environ=environ)
    shown = fedmon_here("whoami", environ=environ)

    assert said["researcher_id"] == (tmp_path / "r" / "researcher_id").read_text().strip()
    assert (said["broker"], said["folder"]) == ("mqtt://no-such.invalid:1883", str(tmp_path / "r"))
    assert shown.stdout.splitlines()[0] == said["researcher_id"]
    assert f"fedmon node policy allow {said['researcher_id']}" in shown.stdout
