"""`fedmon node audit` shows what happened, and names the first line that somebody changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.owner.owner_desks import desk_of, made_folder
from tests.node.owner.owner_shell import node, told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = made_folder(tmp_path / "n")
    with desk_of(made) as desk:
        for number in range(5):
            desk.registers.audit.record("command", researcher="alice", text=f"line\n{number}\x1b[2J")
        desk.registers.audit.record("reply", to="alice")
    return made


def test_the_last_lines_are_shown_oldest_first(folder: Path) -> None:
    last = told(folder, "audit", "show", "--last", "2")["lines"]
    commands = told(folder, "audit", "show", "--event", "command")["lines"]
    screen = node(folder, "audit", "show", "--last", "2").stdout

    assert [(line["n"], line["event"]) for line in last] == [(5, "command"), (6, "reply")]
    assert [line["n"] for line in commands] == [1, 2, 3, 4, 5]
    assert [line.split()[0] for line in screen.splitlines()] == ["5", "6"]
    assert "\x1b" not in screen


def test_a_whole_audit_is_called_whole(folder: Path) -> None:
    result = told(folder, "audit", "verify")

    assert (result["ok"], result["lines"], result["first_bad"]) == (True, 6, None)


def test_an_altered_line_is_named_and_ends_with_one(folder: Path) -> None:
    file = folder / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b"line\\n3", b"line\\n8"))

    result = told(folder, "audit", "verify", code=1)
    screen = node(folder, "audit", "verify")

    assert (result["ok"], result["first_bad"]["n"], result["first_bad"]["line"]) == (False, 4, 4)
    assert (screen.returncode, "audit.jsonl line 4 (number 4)" in screen.stdout) == (1, True)


def test_a_line_that_is_no_longer_json_is_shown_and_named(folder: Path) -> None:
    file = folder / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b'{"n":2', b"\x1b[31m"))

    screen = node(folder, "audit", "show").stdout

    assert "UNREADABLE" in screen
    assert "\x1b" not in screen
    assert told(folder, "audit", "verify", code=1)["first_bad"]["n"] == 2
