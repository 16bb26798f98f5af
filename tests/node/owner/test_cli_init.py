"""`fedmon node init` makes a private node that obeys nobody, and says what to type next."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.node.owner.owner_shell import refused, told
from tests.support.node_process import plain_environment
from tests.support.shell_here import document_here, fedmon_here

BROKER = ("--broker", "mqtt://broker.example.org")


def test_a_new_node_is_private_explained_and_obeys_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "node"

    made = told(folder, "init", *BROKER, "--id", "hospital-a")

    text = (folder / "node.toml").read_text()
    assert made["next"] == [
        f"fedmon node policy allow RESEARCHER --dir {folder}",
        f"fedmon node start --dir {folder}",
    ]
    assert (made["node_id"], made["obeys_nobody"]) == ("hospital-a", True)
    assert (folder.stat().st_mode & 0o777, (folder / "node.toml").stat().st_mode & 0o777) == (0o700, 0o600)
    assert tomllib.loads(text)["policy"]["researchers"] == []
    assert tomllib.loads(text)["release"] == {"mode": "check"}
    assert "# Ids of the researchers whom this node obeys" in text
    assert told(folder, "status")["obeys_nobody"] is True
    assert told(folder, "status")["release"] == {"mode": "check", "held": 0}


@pytest.mark.parametrize("words", [(*BROKER, "--username", "ward7"), ("--broker", "mqtt://ward7@broker.example.org")])
def test_a_node_is_called_as_its_user_at_the_broker_who_can_speak_under_no_other_name(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    assert told(tmp_path / "n", "init", *words)["node_id"] == "ward7"
    assert told(tmp_path / "other", "init", *words, "--id", "other")["node_id"] == "other"


def test_the_commands_to_type_next_are_printed_and_that_nobody_is_obeyed(tmp_path: Path) -> None:
    ran = fedmon_here("node", "init", *BROKER, "--dir", str(tmp_path / "my node"))

    assert ran.returncode == 0
    assert ran.stdout.partition("\n")[0].endswith(". Another node needs another --id.")
    assert "IT OBEYS NO RESEARCHER YET" in ran.stdout
    assert f"\n  fedmon node policy allow RESEARCHER --dir '{tmp_path}/my node'\n" in ran.stdout
    assert f"\n  fedmon node start --dir '{tmp_path}/my node'\n" in ran.stdout


@pytest.mark.parametrize("words", ["status", "policy show", "dataset list", "dataset show gone"])
def test_where_commands_are_printed_the_option_for_the_folder_of_the_verb_is_told(words: str, tmp_path: Path) -> None:
    told(tmp_path / "my node", "init", *BROKER)

    ran = fedmon_here("node", *words.split(), "--dir", str(tmp_path / "my node"))

    assert ran.stderr.endswith(f" commands for this node need: --dir '{tmp_path}/my node'\n")


def test_without_a_folder_the_node_lives_in_the_users_data_folder_or_where_the_environment_says(tmp_path: Path) -> None:
    environ = plain_environment(XDG_DATA_HOME=str(tmp_path))

    made = document_here("node", "init", *BROKER, environ=environ)
    path = document_here("node", "config", "path", environ=environ)["path"]

    named = plain_environment(FEDMON_NODE_DIR=str(tmp_path / "n"), FEDMON_BROKER_URL="mqtt://here")
    elsewhere = document_here("node", "init", environ=named)

    usual = fedmon_here("node", "status", environ=environ)
    not_usual = fedmon_here("node", "status", "--dir", made["folder"], environ=environ | named)

    assert (usual.stderr, not_usual.stderr) == ("", f"note: commands for this node need: --dir {made['folder']}\n")
    assert made["folder"] == str(tmp_path / "fedmon" / "node")
    assert made["next"] == ["fedmon node policy allow RESEARCHER", "fedmon node start"]
    assert path == f"{made['folder']}/node.toml"
    assert (elsewhere["folder"], elsewhere["next"][1]) == (str(tmp_path / "n"), "fedmon node start")
    assert elsewhere["broker"] == "mqtt://here"


def test_a_node_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    told(tmp_path / "n", "init", *BROKER, "--id", "first")

    assert "lives in" in refused(tmp_path / "n", "init", *BROKER, "--id", "second", code=4)

    assert told(tmp_path / "n", "status")["node_id"] == "first"


def test_without_a_terminal_a_missing_broker_is_named(tmp_path: Path) -> None:
    assert "missing --broker" in refused(tmp_path / "n", "init", code=2)
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--broker", "mqtt://me:secret@b"), "password"),
        ((*BROKER, "--id", "nodes"), "reserved"),
        ((*BROKER, "--username", "a@b"), "--id (default: the user) 'a@b' is not usable"),
        ((*BROKER, "--username", "a", "--password-file", "/nowhere"), "/nowhere"),
        (("--broker", "mqtts://b", "--ca-file", "/nowhere"), "cannot use certificate file /nowhere: No such file"),
        (("--broker", "mqtts://b", "--cert-file", __file__), "missing --id (Common name of the certificate)"),
        ((*BROKER, "--colour", "blue"), "--colour"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    message = refused(tmp_path / "n", "init", *words, code=2)

    assert said in message
    assert "secret" not in message
    assert not (tmp_path / "n").exists()
