"""`fedmon node requests`: what waits for the owner, and how it is decided from there."""

from __future__ import annotations

import datetime
from pathlib import Path

from fedmon.common.clock import timestamp, utc_now
from tests.node.owner.owner_desks import asked, desk_of, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.support.terminal import Terminal


def test_a_prefix_of_a_researcher_is_allowed_at_a_terminal_or_with_yes(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    assert "no researcher was refused" in refused(folder, "requests", "allow", "alice", code=3)
    with desk_of(folder) as desk:
        for name in ("alice-of-ward-7", "bob-of-ward-7"):
            desk.registers.refused.count(name)
        desk.registers.refused.save()

    assert "--yes" in refused(folder, "requests", "allow", "alic", code=2)
    with Terminal("node", "requests", "allow", "alic", "--dir", str(folder)) as terminal:
        terminal.read_until("alice-of-ward-7 was refused 1 time")
        terminal.read_until("Obey this researcher")
        terminal.type("y")
        code, shown = terminal.end()
    allowed = told(folder, "requests", "allow", "bob-", "--yes")

    assert code == 0, shown
    assert allowed["policy"]["researchers"] == ["alice-of-ward-7", "bob-of-ward-7"]
    assert told(folder, "requests")["researchers"] == []


def test_plans_wait_until_they_are_decided(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", policy={"researchers": ["alice"]})
    assert node(folder, "requests").stdout == "Nothing waits for you.\n"
    plan_id = asked(folder)

    screen = node(folder, "requests").stdout
    waiting = told(folder, "requests")
    approved = told(folder, "requests", "approve", plan_id)

    assert screen.startswith("1 plan waits for your decision:\n")
    assert plan_id.removeprefix("training_plan_")[:13] in screen
    assert [line for line in screen.splitlines() if len(line) > 80] == []
    assert ([plan["plan_id"] for plan in waiting["plans"]], waiting["researchers"]) == ([plan_id], [])
    assert approved["plan"]["status"] == "approved"
    assert told(folder, "requests") == {"plans": [], "researchers": []}
    asked(folder, by="bob")
    (again,) = told(folder, "requests")["plans"]
    assert (again["asked_again"], again["requested_by"]) == (True, ["bob"])
    assert again["created"] < again["requested"]
    assert "asked again  requested  bob" in node(folder, "requests").stdout


def test_a_flood_of_refused_names_keeps_the_latest(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    with desk_of(folder) as desk:
        for number in range(250):
            desk.registers.refused.count(f"r{number}")
        desk.registers.refused.save()

    found = told(folder, "requests")["researchers"]

    assert [found[0]["researcher_id"], found[-1]["researcher_id"], len(found)] == ["r249", "r50", 200]


def test_a_status_says_first_what_was_damaged_and_restored(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", policy={"researchers": ["alice"]})
    asked(folder)
    assert node(folder, "status").stdout.startswith("needs you  * 1 plan waits for your decision: ")
    (folder / "state.sqlite").write_bytes(b"no register" * 1000)
    node(folder, "status")

    needs, _, rest = node(folder, "status").stdout.partition("\nnode ")

    said = " ".join(needs.split())
    assert "* RESTORED " in said
    assert "* DAMAGED and set aside: state.sqlite.damaged-" in said
    assert said.endswith("* the node is not running: fedmon node start")
    assert "OBEYS NO RESEARCHER" not in said + rest
    with desk_of(folder) as desk:
        desk.registers.database.set_mark("restored", timestamp(utc_now() - datetime.timedelta(days=31)))
    assert "RESTORED" not in node(folder, "status").stdout
    assert "policy     obeys alice" in rest
