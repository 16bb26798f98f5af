"""`fedmon node policy` and `config`: rules are written where the owner reads them, and hold at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.settings.sources import load_node
from fedmon.node.requests.policy import Policy
from tests.node.owner.owner_desks import events, made_folder
from tests.node.owner.owner_shell import node, refused, told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_folder(tmp_path / "n")


def offered(folder: Path) -> str:
    """Offer a table named "Ages", and return the id of the dataset."""
    table = folder.parent / "ages.csv"
    table.write_text("age\n30\n")
    added = told(folder, "dataset", "add", str(table), "--name", "Ages", "--tags", "age")
    return str(added["dataset"]["dataset_id"])


def seen_by(folder: Path, dataset_id: str) -> list[str]:
    """Return who of alice, bob and carol may see the dataset "Ages"."""
    policy = Policy(load_node(folder, {}).policy, "hospital-a")
    return [who for who in ("alice", "bob", "carol") if policy.may_see(who, dataset_id, "Ages")]


def test_nobody_is_obeyed_until_allowed_and_no_longer_once_denied(folder: Path) -> None:
    before = node(folder, "policy", "show").stdout
    allowed = told(folder, "policy", "allow", "alice", "bob")
    denied = told(folder, "policy", "deny", "alice")

    assert before.startswith("OBEYS NO RESEARCHER")
    assert (allowed["policy"]["researchers"], denied["policy"]["researchers"]) == (["alice", "bob"], ["bob"])
    assert told(folder, "policy", "show")["policy"]["researchers"] == ["bob"]
    assert events(folder) == ["policy-change", "policy-change"]


def test_metrics_and_logs_leave_as_the_owner_says(folder: Path) -> None:
    told(folder, "policy", "deny", "--metric", "*")
    told(folder, "policy", "allow", "--metric", "host_cpu_*", "--metric", "host_load*", "--log-level", "error")

    policy = load_node(folder, {}).policy

    assert (policy.metrics, policy.log_level) == (("host_cpu_*", "host_load*"), "ERROR")


def test_what_jobs_print_leaves_once_allowed_and_stays_once_denied(folder: Path) -> None:
    before = node(folder, "policy", "show").stdout
    allowed = told(folder, "policy", "allow", "--job-output")
    denied = told(folder, "policy", "deny", "--job-output")
    with_records = told(folder, "policy", "allow", "--job-output", "--log-level", "info")

    assert "output, log records and errors of jobs stay here" in before
    assert (allowed["policy"]["job_output"], denied["policy"]["job_output"]) == (True, False)
    assert "output and errors of jobs leave; of their log records: WARNING and above" in allowed["rules"]
    assert "output and errors of jobs leave; of their log records: INFO and above" in with_records["rules"]
    assert (allowed["notes"], denied["notes"], with_records["notes"]) == ([], [], [])


def test_a_first_rule_for_a_dataset_and_an_unknown_name_are_pointed_out(folder: Path) -> None:
    unknown = told(folder, "policy", "allow", "alice", "--dataset", "Age")["notes"]
    offered(folder)
    first, second = (told(folder, "policy", "allow", who, "--dataset", "Ages")["notes"] for who in ("alice", "bob"))

    assert unknown == ["dataset 'Age' not found yet; the rule waits for it"]
    assert first == [
        "dataset Ages is from now on listed to alice only; until now every researcher that is obeyed could see it"
    ]
    assert second == []


@pytest.mark.parametrize("names_the_id", [True, False])
def test_a_dataset_is_denied_and_allowed_by_name_or_id_whichever_its_rule_names(
    folder: Path, names_the_id: bool
) -> None:
    dataset_id = offered(folder)
    ruled, other = (dataset_id, "Ages") if names_the_id else ("Ages", dataset_id[:14])
    told(folder, "policy", "allow", "alice", "bob", "--dataset", ruled)
    told(folder, "policy", "allow", "carol")
    before = seen_by(folder, dataset_id)

    denied = told(folder, "policy", "deny", "alice", "--dataset", other)

    assert (before, seen_by(folder, dataset_id)) == (["alice", "bob"], ["bob"])
    assert (denied["policy"]["datasets"], denied["notes"]) == ({ruled: ["bob"]}, [])
    told(folder, "policy", "allow", "carol", "--dataset", other)
    assert seen_by(folder, dataset_id) == ["bob", "carol"]


@pytest.mark.parametrize("denied", [("--metric", "host_cpu*"), ("alise",)])
def test_a_denial_that_changes_nothing_is_pointed_out(folder: Path, denied: tuple[str, ...]) -> None:
    told(folder, "policy", "deny", "--metric", "*")
    told(folder, "policy", "allow", "alice", "--metric", "host_*")

    assert told(folder, "policy", "deny", *denied)["notes"] == ["no rule matched: nothing changed"]
    assert told(folder, "policy", "deny", "--metric", "host_*")["notes"] == []


def test_a_variable_that_overrides_the_file_is_pointed_out(folder: Path) -> None:
    ran = node(folder, "policy", "allow", "alice", environ={"FEDMON_POLICY_RESEARCHERS": "eve"})

    assert ran.returncode == 0
    assert "obeys eve" in ran.stdout
    assert "FEDMON_POLICY_RESEARCHERS overrides the file" in " ".join(ran.stderr.split())
    assert load_node(folder, {}).policy.researchers == ("alice",)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("policy", "allow"), 2, "missing RESEARCHER"),
        (("policy", "allow", "--dataset", "d"), 2, "missing RESEARCHER"),
        (("policy", "allow", "a b"), 2, "a b"),
        (("policy", "allow", "alice", "--dataset", ""), 2, "'' names no dataset"),
        (("policy", "allow", "--metric", "host\n"), 2, "names no dataset or metric"),
        (("policy", "allow", "--log-level", "loud"), 2, "'debug', 'info'"),
        (("policy", "deny", "--metric", "host_cpu_*"), 4, "every metric leaves"),
    ],
)
def test_what_cannot_be_a_rule_is_refused_and_changes_nothing(
    folder: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    before = (folder / "node.toml").read_bytes()

    assert said in refused(folder, *words, code=code)

    assert (folder / "node.toml").read_bytes() == before


def test_settings_are_shown_with_where_they_come_from(folder: Path) -> None:
    environ = {"FEDMON_METRICS_INTERVAL_S": "2", "MQTT_BROKER": "historic.example.org"}

    found = {each["key"]: each for each in told(folder, "config", "show", environ=environ)["settings"]}
    screen = node(folder, "config", "show").stdout

    interval, broker = found["metrics.interval_s"], found["broker.url"]
    assert (interval["value"], interval["origin"]) == (2.0, "FEDMON_METRICS_INTERVAL_S")
    assert broker == {"key": "broker.url", "value": "mqtt://historic.example.org:1883", "origin": "MQTT_BROKER"}
    assert (found["node.id"]["origin"], found["metrics.enabled"]["origin"]) == ("file", "default")
    assert [line for line in screen.splitlines() if len(line) > 80] == [f"Settings of {folder / 'node.toml'}"] or all(
        len(line) <= 80 for line in screen.splitlines()
    )


@pytest.mark.parametrize(
    ("in_file", "environ", "origin"),
    [
        ({"url": "mqtt://ward7@h"}, {}, "file"),
        ({"url": "mqtt://ward7@h"}, {"MQTT_BROKER": "other.example.org"}, "file"),
        ({"username": "ward8"}, {"FEDMON_BROKER_URL": "mqtt://ward7@h"}, "FEDMON_BROKER_URL"),
    ],
)
def test_a_user_of_the_broker_url_comes_from_where_the_url_was_written(
    folder: Path, in_file: dict[str, str], environ: dict[str, str], origin: str
) -> None:
    made_folder(folder, broker=in_file)

    found = {each["key"]: each for each in told(folder, "config", "show", environ=environ)["settings"]}

    assert (found["broker.username"]["value"], found["broker.username"]["origin"]) == ("ward7", origin)


def test_a_secret_is_never_shown(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hush-hush\n")
    secret.chmod(0o600)
    made_folder(folder, broker={"username": "a", "password_file": str(secret)})

    shown = node(folder, "config", "show", "--json").stdout + node(folder, "config", "show").stdout

    assert str(secret) in shown
    assert "hush-hush" not in shown


def test_a_bad_setting_is_named_with_file_key_and_allowed_values(folder: Path) -> None:
    made_folder(folder, metrics={"interval_s": 0.01})

    for words in (("start",), ("status",)):
        message = refused(folder, *words, code=2)
        assert f"{folder / 'node.toml'}: [metrics] interval_s = 0.01: allowed is a number from 0.2" in message
