"""`fedmon node audit` shows what happened, and names the first line that somebody changed."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path

import pytest

from fedmon.common.clock import utc_now
from fedmon.node.requests.audit import Audit
from tests.node.owner.owner_desks import desk_of, made_folder
from tests.node.owner.owner_shell import node, refused, told


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


def test_an_altered_line_is_named_and_ends_with_one(folder: Path) -> None:
    whole, file = node(folder, "audit", "verify").stdout, folder / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b"line\\n3", b"line\\n8"))

    result = told(folder, "audit", "verify", code=1)
    screen = node(folder, "audit", "verify")

    assert (result["ok"], result["first_bad"]["n"], result["first_bad"]["line"]) == (False, 4, 4)
    assert (screen.returncode, "audit.jsonl line 4 (number 4)" in screen.stdout) == (1, True)
    assert whole == f"The audit is whole: 6 lines in 1 file of {folder}.\n"
    assert screen.stdout.endswith("\nBefore it 3 lines are as written.\n")


def test_a_line_that_is_no_longer_json_is_shown_and_named(folder: Path) -> None:
    file = folder / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b'{"n":2', b"\x1b[31m"))

    screen = node(folder, "audit", "show").stdout

    assert "UNREADABLE" in screen
    assert "\x1b" not in screen
    assert told(folder, "audit", "verify", code=1)["first_bad"]["n"] == 2


def test_lines_are_exported_as_they_are_from_one_moment_to_another(folder: Path) -> None:
    raw = (folder / "audit.jsonl").read_bytes()
    third, fourth = (json.loads(line) for line in raw.splitlines()[2:4])

    whole = node(folder, "audit", "export")
    part = node(folder, "audit", "export", "--since", third["time"], "--until", fourth["time"]).stdout.splitlines()

    assert (whole.returncode, whole.stdout.encode()) == (0, raw)
    assert [json.loads(line)["n"] for line in part] == [3, 4]
    assert all(
        hashlib.sha256(f"{line.rpartition(',')[0]}}}".encode()).hexdigest() == json.loads(line)["hash"] for line in part
    )
    assert "is not a time" in refused(folder, "audit", "export", "--since", "yesterday", code=2)
    assert "is not a time" in refused(folder, "audit", "export", "--since", "1764367200000", code=2)
    assert "is before" in refused(folder, "audit", "export", "--since", "20", "--until", "10", code=2)


def test_old_lines_are_pruned_and_the_rest_still_verifies(folder: Path) -> None:
    nothing = told(folder, "audit", "prune", "--keep-days", "1")
    # The lines of now are old a hundred days later; the clock is passed in by the process that prunes.
    later = utc_now() + datetime.timedelta(days=100)
    with Audit(folder) as audit:
        pruned = audit.prune(later - datetime.timedelta(days=30), by="eve")

    result = told(folder, "audit", "verify")
    lines = told(folder, "audit", "show")["lines"]

    assert (nothing["pruned"], pruned) == (0, 6)
    assert (result["ok"], result["lines"], result["first_bad"]) == (True, 1, None)
    assert (lines[0]["n"], lines[0]["event"]) == (7, "audit-pruned")
    assert "lines up to number 6 were pruned" in result["notes"][0]
    assert sorted(path.name for path in folder.glob("audit*")) == [
        "audit-000000000000007.jsonl", "audit.head", "audit.jsonl", "audit.stub",
    ]  # fmt: skip


def test_an_audit_that_was_changed_is_not_pruned(folder: Path) -> None:
    file = folder / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b"line\\n3", b"line\\n8"))

    assert "the audit was changed" in refused(folder, "audit", "prune", "--keep-days", "1", code=4)
