"""The owner's rules: what allow and deny make of them, and what stays of node.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.settings.broker import DEFAULT_URL, broker_from_url
from fedmon.common.settings.keys import keys_of
from fedmon.common.settings.sources import load_node
from fedmon.common.settings.values import NodeSettings, PolicySettings
from fedmon.node.owner.cli.node import new_settings
from fedmon.node.requests.policy import PolicyWish, allow, deny, with_policy

RULES = PolicySettings


@pytest.mark.parametrize(
    ("before", "wish", "after"),
    [
        (RULES(), PolicyWish(researchers=["a", "b", "a"]), RULES(researchers=("a", "b"))),
        (RULES(researchers=("a",)), PolicyWish(researchers=["a"]), RULES(researchers=("a",))),
        (RULES(researchers=("*",)), PolicyWish(researchers=["a"]), RULES(researchers=("*",))),
        (RULES(), PolicyWish(researchers=["a"], datasets=["d"]), RULES(researchers=("a",), datasets={"d": ("a",)})),
        (
            RULES(researchers=("a",), datasets={"d": ("a",)}),
            PolicyWish(researchers=["b"], datasets=["d", "e"]),
            RULES(researchers=("a", "b"), datasets={"d": ("a", "b"), "e": ("b",)}),
        ),
        (RULES(metrics=()), PolicyWish(metrics=["host_cpu_*"]), RULES(metrics=("host_cpu_*",))),
        (RULES(), PolicyWish(log_level="NONE"), RULES(log_level="NONE")),
        (RULES(), PolicyWish(job_output=True), RULES(job_output=True)),
        (RULES(job_output=True), PolicyWish(researchers=["a"]), RULES(researchers=("a",), job_output=True)),
    ],
)
def test_allowing_adds_to_the_rules(before: PolicySettings, wish: PolicyWish, after: PolicySettings) -> None:
    assert after == allow(before, wish)


@pytest.mark.parametrize(
    ("before", "wish", "after"),
    [
        (RULES(researchers=("a", "b")), PolicyWish(researchers=["a"]), RULES(researchers=("b",))),
        (RULES(researchers=("*",)), PolicyWish(researchers=["*"]), RULES()),
        (
            RULES(researchers=("a", "b"), datasets={"d": ("a", "b")}),
            PolicyWish(researchers=["a"]),
            RULES(researchers=("b",), datasets={"d": ("b",)}),
        ),
        (
            RULES(researchers=("a", "b")),
            PolicyWish(researchers=["a"], datasets=["d"]),
            RULES(researchers=("a", "b"), datasets={"d": ("b",)}),
        ),
        (
            RULES(researchers=("a",), datasets={"d": ("a",)}),
            PolicyWish(researchers=["a"], datasets=["d"]),
            RULES(researchers=("a",), datasets={"d": ()}),
        ),
        (RULES(), PolicyWish(metrics=["*"]), RULES(metrics=())),
        (RULES(log_level="DEBUG"), PolicyWish(log_level="INFO"), RULES(log_level="WARNING")),
        (RULES(job_output=True), PolicyWish(job_output=True), RULES()),
        (RULES(job_output=True), PolicyWish(log_level="DEBUG"), RULES(job_output=True)),
        (RULES(log_level="ERROR"), PolicyWish(log_level="INFO"), RULES(log_level="ERROR")),
        (RULES(), PolicyWish(log_level="CRITICAL"), RULES(log_level="NONE")),
    ],
)
def test_denying_takes_away_and_never_opens(before: PolicySettings, wish: PolicyWish, after: PolicySettings) -> None:
    assert after == deny(before, wish)


@pytest.mark.parametrize(
    ("before", "wish"),
    [
        (RULES(researchers=("*",)), PolicyWish(researchers=["a"])),
        (RULES(researchers=("*",)), PolicyWish(researchers=["a"], datasets=["d"])),
        (RULES(researchers=("a",), datasets={"d": ("*",)}), PolicyWish(researchers=["a"], datasets=["d"])),
        (RULES(), PolicyWish(metrics=["host_cpu_*"])),
    ],
)
def test_one_cannot_be_taken_out_of_all(before: PolicySettings, wish: PolicyWish) -> None:
    with pytest.raises(ConflictError, match="allow"):
        deny(before, wish)


def test_denying_the_level_of_no_record_is_wrong_use() -> None:
    with pytest.raises(InvalidInputError, match="DEBUG, INFO, WARNING, ERROR, CRITICAL"):
        deny(RULES(), PolicyWish(log_level="NONE"))


def test_a_new_settings_file_explains_every_key_and_loads(tmp_path: Path) -> None:
    text = new_settings({("node", "id"): "a", ("broker", "url"): "mqtt://b"})
    (tmp_path / "node.toml").write_text(text)

    settings = load_node(tmp_path, {})

    assert ("a", "mqtt://b:1883", PolicySettings()) == (settings.id, settings.broker.url, settings.policy)
    for key in keys_of("node"):
        lines = [line for line in text.splitlines() if line.removeprefix("# ").startswith(f"{key.name} =")]
        assert lines or f"[{key.section}.{key.name}]" in text, key.name
        assert key.description.split()[-1] in text


def test_every_default_in_a_new_settings_file_is_the_one_that_holds(tmp_path: Path) -> None:
    text = new_settings({("node", "id"): "a", ("broker", "url"): DEFAULT_URL})
    freed = 0
    for key in keys_of("node"):
        if key.default is not None and not key.is_table and f"\n{key.name} = " not in text:
            text = text.replace(f"\n# {key.name} = ", f"\n{key.name} = ")
            freed += 1
    (tmp_path / "node.toml").write_text(text)

    settings = load_node(tmp_path, {})

    assert freed > 5
    assert settings == NodeSettings(id="a", broker=broker_from_url(DEFAULT_URL))


@pytest.mark.parametrize(
    "text",
    [
        "# mine\n[node]\nid = 'a' # me\n\n[policy]\nresearchers = [\n  'x',\n  'y', # a colleague\n]\n# the end\n",
        "# mine\n[node]\nid = 'a' # me\n# the end\n",
        "# mine\nnode.id = 'a' # me\npolicy = { researchers = ['x'] } # the end\n",
        "# mine\n[node]\nid = 'a' # me\n[policy.datasets] # the end\nold = ['x']\n",
    ],
)
def test_changed_rules_leave_other_keys_and_their_comments(text: str) -> None:
    rules = PolicySettings(researchers=("x", "y"), datasets={"a b": ("y",)}, metrics=(), log_level="ERROR")

    changed = with_policy(text, rules)

    document = tomllib.loads(changed)
    assert document["policy"] == {
        "researchers": ["x", "y"], "datasets": {"a b": ["y"]}, "metrics": [], "log_level": "ERROR",
    }  # fmt: skip
    assert document["node"] == {"id": "a"}
    comments = ["# mine", "# me", "# a colleague", "# the end"]
    assert [each for each in comments if each in changed] == [each for each in comments if each in text]
