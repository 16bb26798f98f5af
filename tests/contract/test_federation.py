"""What verbs print as JSON, what passes the broker, and what Python objects hold, of one federation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.federation import Scene, asked
from tests.contract.names import broken
from tests.contract.tables import breaches, kept, packed, rewrite, shape, table, union, unpacked
from tests.contract.tap import Heard

pytestmark = pytest.mark.timeout(300)
_WIRE, _HELD = table("wire"), table("objects")
_PRINTED = {words: unpacked(row) for several, row in table("printed").items() for words in several.split(", ")}
REPLIES = {"ping": "pong", "monitor start": "monitor", "monitor stop": "monitor", "monitor resend": "samples"}
"""Requests whose reply has another name."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A federation that did everything once."""
    played = Scene(tmp_path_factory.mktemp("federation"), _WIRE)
    played.play()
    rewrite("printed", _grouped({name: [code, *shape(texts)] for name, (code, texts) in played.printed.items()}))
    rewrite("wire", _with_older(_messages(played.heard)))
    rewrite("objects", played.held)
    return played


@pytest.mark.parametrize("words", _PRINTED)
def test_a_verb_ends_and_prints_as_it_did(words: str, scene: Scene) -> None:
    code, *promised = _PRINTED[words]

    code_now, documents = scene.printed[words]

    assert (code_now, bool(documents)) == (code, bool(promised))
    assert [each for document in documents for each in breaches(promised[0], document)] == []


@pytest.mark.parametrize("name", _WIRE)
def test_a_message_keeps_its_topic_its_keys_and_their_types(name: str, scene: Scene) -> None:
    found = _messages(scene.heard)

    assert name in found
    assert [topic for topic in _WIRE[name]["topics"] if topic not in found[name]["topics"]] == []
    messages = [heard.message for heard in scene.heard if _name(heard) == name]
    assert [each for message in messages for each in breaches(_keys(_WIRE[name]), message)] == []


@pytest.mark.parametrize("command", [name.removeprefix("researcher ") for name in asked(_WIRE)])
def test_a_node_understands_what_researchers_sent_before(command: str, scene: Scene) -> None:
    answer = REPLIES.get(command, command)

    reply = scene.replies[f"researcher {command}"]

    assert reply["command"] == answer
    assert breaches(_keys(_WIRE[f"node {answer}"]), reply) == []


def test_a_researcher_understands_what_nodes_sent_before(scene: Scene) -> None:
    if not _WIRE:
        pytest.skip("no message is written down yet")
    answers = scene.answers

    names = ("ping", "datasets", "search", "approve", "plan_status")
    assert {name: list(answers[name]) for name in names} == {name: ["old1"] for name in names}
    assert [dataset.name for dataset in answers["search"]["old1"].datasets] == ["cells"]
    assert answers["decision"].status.value == "approved"
    assert (answers["monitor"].node_id, answers["monitor"].stream) == ("old1", "host")
    assert answers["run"] == {"old1": {"rows": 2}}
    assert [one.values for one in answers["scalars"]["old1"]] == [{"loss": 0.5}]


@pytest.mark.parametrize("name", _HELD)
def test_what_a_script_is_given_has_the_names_that_it_had(name: str, scene: Scene) -> None:
    assert broken(_HELD[name], scene.held[name]) == []


def _name(heard: Heard) -> str:
    """Return who sends a message and what it is."""
    if "text" in heard.message:
        return "researcher marker"
    who = "researcher" if heard.topic.startswith("general/nodes/") else "node"
    action = heard.message.get("action") if who == "researcher" else None
    return " ".join(filter(None, [who, heard.message["command"], action]))


def _messages(heard: list[Heard]) -> dict[str, Any]:
    """Return of each message its topics, its keys and the first that was heard; one that is sent again counts once."""
    found: dict[str, Any] = {}
    asked: set[str] = set()
    for each in heard:
        place = _pattern(each)
        is_own = "/doctor-" in each.topic or "/old/" in each.topic or each.message.get("instance") == "old"
        is_again = "instance" in each.message and each.message["id"] in asked
        if is_own or is_again or each.message.get("stream") == "user":
            continue
        asked.add(each.message.get("id", ""))
        row = found.setdefault(_name(each), {"topics": set(), "shapes": [], "message": each.message})
        row["topics"].add(place)
        row["shapes"].append(shape(each.message))
    return {
        name: {"topics": sorted(row["topics"]), "keys": union(row["shapes"]), "message": _short(row["message"])}
        for name, row in found.items()
    }


def _pattern(heard: Heard) -> str:
    """Return a topic without ids, and how it was sent."""
    _, kind, *levels = heard.topic.split("/")
    own = {"nodes": ["<researcher_id>", "<node_id>"], "researcher": ["<researcher_id>", "<instance>", "<node_id>"]}
    names = own.get(kind, ["<node_id>"])[: len(levels)]
    if kind == "researcher":
        names[1:] = [
            "all" if levels[1] == "all" else "<instance>",
            "<researcher_id>" if levels[2] == levels[0] else names[2],
        ]
    return " ".join(
        ["/".join(["general", kind, *names]), "qos", str(heard.qos), *(["retained"] if heard.retain else [])]
    )


def _keys(row: dict[str, Any]) -> Any:
    """Return the keys of a message and their types: those of the example, unless others were seen, too."""
    return shape(row["message"]) | unpacked(row.get("keys", {}))


def _with_older(rows: dict[str, Any]) -> dict[str, Any]:
    """Keep the examples that are there, and every type that a key was ever seen with."""
    older = kept("wire")
    for name, row in rows.items():
        if name in older:
            row["message"], row["keys"] = older[name]["message"], union([_keys(older[name]), row["keys"]])
        plain = shape(row["message"])
        row["keys"] = packed({key: kinds for key, kinds in row["keys"].items() if kinds != plain.get(key)})
        if not row["keys"]:
            del row["keys"]
    return rows


def _grouped(rows: dict[str, Any]) -> dict[str, Any]:
    """Put verbs that print the same into one row; keep every type that a key was ever seen with."""
    older = {words: unpacked(row) for several, row in kept("printed").items() for words in several.split(", ")}
    grouped: dict[str, list[str]] = {}
    for words, row in rows.items():
        code, *shapes = row
        shapes = [union([*older.get(words, [])[1:], *shapes])] if shapes else []
        grouped.setdefault(json.dumps([code, *packed(shapes)]), []).append(words)
    return {", ".join(several): json.loads(row) for row, several in grouped.items()}


def _short(value: Any, key: str = "") -> Any:
    """Return an example of a message that a person can read."""
    if isinstance(value, dict):
        few = list(value.items())[: 2 if len(value) > 25 or key in ("m", "metrics", "capabilities") else None]
        return {} if key == "hardware" else {name: _short(each, name) for name, each in few}
    if isinstance(value, list):
        return [_short(each) for each in value[:2]]
    plain = {"session": "s1", "instance": "main", "sequence": 1}
    return plain.get(
        key, f"{value[:40]} ..." if isinstance(value, str) and len(value) > 70 and key != "source" else value
    )
