"""`fedmon node plan`: what the owner sees is what is there, and what he approves is what he saw."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.node.owner.owner_desks import PLAN, asked, events, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.support.node_process import fedmon, plain_environment
from tests.support.terminal import Terminal

DIGEST = hashlib.sha256(PLAN).hexdigest()
HIDDEN = "rate = 0.1 # \u202e\u200b\x1b[2J\x07 end\nepochs = 3\n".encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_folder(tmp_path / "n")


def test_the_digest_is_the_same_sixty_four_digits_everywhere(folder: Path) -> None:
    plan_id = asked(folder)

    shown = node(folder, "plan", "show", plan_id).stdout
    approved = node(folder, "plan", "approve", plan_id).stdout
    documents = [told(folder, "plan", "list")["plans"][0], told(folder, "plan", "show", "logistic")["plan"]]

    for text in (shown, approved):
        assert f"sha256 {DIGEST}" in " ".join(text.split())
        assert "0.1 a row, by the node's rule\n" in text
        assert "auto, the node's mode\n" in text
    assert [document["sha256"] for document in documents] == [DIGEST, DIGEST]
    assert DIGEST in (folder / "audit.jsonl").read_text()


def test_what_would_deceive_a_reader_is_written_out(folder: Path) -> None:
    plan_id = asked(folder, HIDDEN)

    screen = node(folder, "plan", "show", plan_id).stdout
    document = told(folder, "plan", "show", plan_id)

    assert "rate = 0.1 # ⟦U+202E⟧⟦U+200B⟧⟦U+001B⟧[2J⟦U+0007⟧ end\nepochs = 3\n" in screen
    assert not set("\u202e\u200b\x1b\x07") & set(screen)
    assert document["source"].startswith("rate = 0.1 # ⟦U+202E⟧")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("plan list", "No training plans yet."),
        ("runs", "No plan has run here yet."),
        ("results", "No result waits for you."),
        ("released", "No result has left yet."),
        ("dataset list", "No datasets yet. Add one: fedmon node dataset add PATH"),
        ("requests", "Nothing waits for you."),
        ("audit verify", "The audit is whole: 0 lines in 0 files of "),
        ("audit show", "The audit is empty."),
    ],
)
def test_an_empty_list_says_so(folder: Path, words: str, says: str) -> None:
    assert node(folder, *words.split()).stdout.startswith(says)


def test_lists_are_filtered_sorted_and_searched(folder: Path) -> None:
    asked(folder, b"a = 1\n", name="tree")
    second = asked(folder, b"b = 1\n", name="forest")
    told(folder, "plan", "reject", second, "--note", "too large")
    assert "length <= 16384" in refused(folder, "plan", "reject", second, "--note", "x" * 16_385, code=2)

    def names(*words: str) -> list[str]:
        return [plan["name"] for plan in told(folder, "plan", "list", *words)["plans"]]

    assert names("--sort", "name") == ["forest", "tree"]
    assert names("--sort", "name", "--descending") == ["tree", "forest"]
    assert names("--status", "pending") == ["tree"]
    assert names("--search", "LARGE") == ["forest"]
    assert names("--search", "alice", "--sort", "decided") == ["forest", "tree"]
    assert names("--name", "tree", "--type", "registered") == []
    assert node(folder, "plan", "list", "--status", "approved").stdout == "No training plan matches.\n"
    assert "cannot be sorted by" in refused(folder, "plan", "list", "--sort", "name; DROP TABLE plans", code=2)
    for option, words in (("--status", "'pending', 'approved', 'rejected'"), ("--type", "'requested', 'registered'")):
        assert f"'wrong' is not one of {words}" in refused(folder, "plan", "list", option, "wrong", code=2)


def test_without_a_terminal_approval_names_bytes_and_never_a_name_or_prefix_alone(folder: Path) -> None:
    plan_id = asked(folder)
    for words in (("logistic",), (DIGEST[:4],), (plan_id[:22],), ("--sha256", DIGEST[:12])):
        message = refused(folder, "plan", "approve", *words, code=2)
        assert all(text in message for text in (f"--sha256 {DIGEST}", plan_id, "--yes"))
    assert "missing PLAN" in refused(folder, "plan", "approve", code=2)

    assert told(folder, "plan", "list")["plans"][0]["status"] == "pending"
    assert events(folder) == []


@pytest.mark.parametrize("way", ["id", "bare id", "digest", "name and digest", "digest option", "prefixes and yes"])
def test_without_a_terminal_a_plan_is_approved_by_id_or_digest(folder: Path, way: str) -> None:
    plan_id = asked(folder)
    words = {
        "id": (plan_id,),
        "bare id": (plan_id.removeprefix("training_plan_"),),
        "digest": (DIGEST,),
        "name and digest": ("logistic", "--sha256", DIGEST),
        "digest option": ("--sha256", DIGEST),
        "prefixes and yes": (plan_id.removeprefix("training_plan_")[:4], "--sha256", DIGEST[:4], "--yes"),
    }[way]

    result = told(folder, "plan", "approve", *words, "--note", "fine")

    assert (result["plan"]["status"], result["plan"]["note"], result["tells"]) == ("approved", "fine", ["alice"])
    assert events(folder) == ["plan-decision"]


def test_another_digest_than_the_plans_is_a_conflict(folder: Path) -> None:
    plan_id = asked(folder)

    assert DIGEST in refused(folder, "plan", "approve", plan_id, "--sha256", "0" * 64, code=4)
    assert told(folder, "plan", "list")["plans"][0]["status"] == "pending"


def test_at_a_terminal_a_name_is_approved_after_the_digest_was_shown(folder: Path) -> None:
    asked(folder)
    other = asked(folder, b"x = 1\n", name="forest")
    told(folder, "plan", "approve", other)
    asked(folder, b"x = 1\n", name="forest", by="bob")

    with Terminal("node", "plan", "approve", "--dir", str(folder)) as terminal:
        assert "forest    asked again" in terminal.read_until("sha256 or name")
        terminal.type("logistic")
        seen = terminal.read_until("exactly these bytes")
        terminal.type("y")
        code, shown = terminal.end()

    assert DIGEST in seen
    assert code == 0, shown
    assert {plan["status"] for plan in told(folder, "plan", "list")["plans"]} == {"approved"}
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_at_a_terminal_whole_digests_are_asked_about_too_unless_with_yes_and_no_is_no(folder: Path) -> None:
    plan_id = asked(folder)

    with Terminal("node", "plan", "approve", plan_id, "--sha256", DIGEST, "--dir", str(folder)) as terminal:
        assert DIGEST in terminal.read_until("exactly these bytes")
        terminal.type("")
        refused_code, _ = terminal.end()
    before = told(folder, "plan", "list")["plans"][0]["status"]
    with Terminal("node", "plan", "approve", DIGEST[:6], "--yes", "--note", "again", "--dir", str(folder)) as terminal:
        code, shown = terminal.end()

    assert (refused_code, before, code) == (1, "pending", 0), shown
    assert "exactly these bytes" not in shown
    assert told(folder, "plan", "list")["plans"][0]["note"] == "again"


def test_a_difference_ends_with_one_and_shows_nothing_raw(folder: Path) -> None:
    first, second = (asked(folder, source) for source in (PLAN, HIDDEN))
    assert "plan show" in refused(folder, "plan", "diff", second, code=3)
    told(folder, "plan", "approve", first)

    screen = node(folder, "plan", "diff", second)
    document = told(folder, "plan", "diff", second, code=1)

    assert screen.returncode == 1
    assert f"--- sha256 {DIGEST}\n" in screen.stdout
    assert "\n-rate = 0.1\n+rate = 0.1 # ⟦U+202E⟧⟦U+200B⟧⟦U+001B⟧[2J⟦U+0007⟧ end\n" in screen.stdout
    assert (document["same"], document["against"]["sha256"]) == (False, DIGEST)


def test_a_plan_of_the_owners_own_is_approved_by_registering_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(PLAN)

    plan = told(folder, "plan", "register", str(tmp_path / "mine.py"), "--description", "mine")["plan"]

    assert (plan["name"], plan["type"], plan["status"], plan["sha256"]) == ("mine", "registered", "approved", DIGEST)
    assert "approve" in refused(folder, "plan", "register", str(tmp_path / "mine.py"), code=4)
    assert "nowhere.py" in refused(folder, "plan", "register", "nowhere.py", code=2)


def test_reset_and_delete_take_an_approval_back(folder: Path) -> None:
    plan_id = asked(folder)
    told(folder, "plan", "approve", plan_id)

    assert told(folder, "plan", "reset", plan_id)["plan"]["status"] == "pending"
    assert told(folder, "plan", "delete", plan_id)["plan"]["sha256"] == DIGEST

    assert told(folder, "plan", "show", plan_id, code=3)["error"]["type"] == "NotFoundError"
    assert not (folder / "plans" / DIGEST).exists()


def test_plan_screens_fit_eighty_columns(folder: Path) -> None:
    asked(folder, name="A plan whose name has many words " * 5)
    told(folder, "plan", "reject", DIGEST, "--note", "no " * 100)

    screens = [
        node(folder, "plan", *words, environ={"COLUMNS": "80"})
        for words in (("list",), ("show", DIGEST), ("reset", DIGEST))
    ]

    for screen in screens:
        assert screen.returncode == 0, screen.stderr
        assert [line for line in screen.stdout.splitlines() if len(line) > 80] == []


def test_a_terminal_that_cannot_show_a_character_gets_its_code(folder: Path) -> None:
    plan_id = asked(folder, HIDDEN + "# é\n".encode())

    folder = folder.rename(folder.with_name("é"))
    environ = plain_environment(PYTHONIOENCODING="ascii")
    words = ("node", "plan", "show", plan_id, "--dir", str(folder))
    ran, as_json = fedmon(*words, environ=environ), fedmon(*words, "--json", environ=environ)
    (folder / "state.sqlite").write_bytes(b"damaged")
    logged = fedmon(*words, "--json", environ=environ).stderr

    assert ran.returncode == 0, ran.stderr
    assert "rate = 0.1 # \\u27e6U+202E\\u27e7" in ran.stdout
    assert json.loads(as_json.stdout)["source"].endswith("# é\n")
    assert "\\xe9/state.sqlite was damaged" in logged
