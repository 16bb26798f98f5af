"""The page of experiments lists what the code does: each transition is tried, and none is left out."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from fedmon.experiment import ExperimentController
from fedmon.experiment.calls import Function
from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.document.conditions import condition_from
from fedmon.experiment.errors import InvalidStateError
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import NAME
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.situation import MET, OBSOLETE, Blocked, Resource, Want, verdict_on
from fedmon.experiment.states import ResourceState

PAGE = (Path(__file__).parents[2] / "docs/experiments.md").read_text()
VERBS = ("discover", "reserve", "provision", "deploy", "start", "stop", "fail", "release")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def table(text: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def listed(cell: str) -> set[str]:
    return {name.strip() for name in cell.split(",") if name.strip()}


@functools.cache
def done() -> set[tuple[str, str, str]]:
    """Return the transitions that verbs make, each tried from each state."""
    found = set()
    ResourceFactory.register_type(ResourceManager)
    for state in ResourceState:
        for verb in VERBS:
            ec = ExperimentController(journal=False)
            rm = ec.get_resource(ec.register_resource("Resource", critical=False))
            rm.set_state(state)
            before = ec.snapshot.resources[rm.guid].times
            with contextlib.suppress(InvalidStateError):
                getattr(rm, verb)()
            if ec.snapshot.resources[rm.guid].times != before:
                found.add((state.name, verb, rm.state.name))
            ec.give_up()
    return found


def drawn(diagram: str) -> set[tuple[str, str, str]]:
    """Return the transitions of a diagram; an arrow from a frame leaves each state in it."""
    arrows, frames, around = [], defaultdict[str, set[str]](set), list[str]()
    for line in diagram.splitlines():
        if frame := re.search(r"state (\w+) {", line):
            around.append(frame[1])
        elif line.strip() == "}":
            around.pop()
        elif arrow := re.search(r"(\w+) --> (\w+): (\w+)", line):
            arrows.append(arrow.groups())
            for frame_name in around:
                frames[frame_name] |= {*arrow.groups()[:2]} & {*ResourceState.__members__}
    return {(state, verb, end) for start, end, verb in arrows for state in frames.get(start, {start})}


def test_the_table_of_verbs_is_what_verbs_do() -> None:
    rows = table(section("The states of a resource"))

    found = {(state, verb.strip("`"), end) for verb, states, end in rows for state in listed(states)}

    assert [row[0].strip("`") for row in rows] == list(VERBS)
    assert found == done()


def test_the_diagram_shows_what_verbs_do() -> None:
    found = drawn(section("The states of a resource").partition("```mermaid")[2].partition("```")[0])

    # The first three verbs are drawn in their usual order alone; the table says that they may be called in any.
    others = {(start, verb, end) for start, verb, end in done() if verb not in VERBS[:3] and start != end}
    assert others <= found <= done()
    assert {verb for _, verb, _ in found} == set(VERBS)


def test_the_table_of_what_is_wanted_is_how_it_is_judged() -> None:
    rows = {row[0].strip("`"): [listed(cell) for cell in row[1:]] for row in table(section("When actions run"))}

    assert list(rows) == ["deploy", "start", "stop", "set"]
    for kind, (waits, is_done, is_dropped) in rows.items():
        judged = {}
        for state in ResourceState:
            want = Want(key=(1, kind), since=0.0)
            found = verdict_on(want, {1: Resource(guid=1, rtype="test::Plain", state=state)}, 0.0)
            judged[state.name] = found if found in (MET, OBSOLETE) else Blocked
        assert waits == {name for name, found in judged.items() if found is Blocked}, kind
        assert is_done == {name for name, found in judged.items() if found is MET}, kind
        assert is_dropped == {name for name, found in judged.items() if found is OBSOLETE}, kind


def test_the_page_has_every_type_of_a_federation() -> None:
    own = {rtype for rtype in ResourceFactory.get_resource_types() if rtype.startswith(("fedmon::", "local::"))}
    own.add(Function.get_rtype())

    assert {row[0].strip("`") for row in table(section("The types"))} == own


@pytest.mark.parametrize("text", re.findall(r"`((?:after|when|\d of) [^`]+)`", section("Conditions")))
def test_conditions_are_written_as_files_have_them(text: str) -> None:
    names = {"train": 1, "a": 2, "b": 3, "c": 4}

    assert condition_from(text, names, number=1).group
    within = condition_from(f"{text} within 60s", names, number=1)
    assert within.timeout_s == 60
    assert isinstance(within, StateCondition) is ("." not in text.replace("0.9", ""))


def test_files_and_base_attributes_are_called_as_they_are() -> None:
    assert f"`{NAME}`" in PAGE
    for attribute in ResourceManager.get_attributes():
        assert f"`{attribute.name}` (" in PAGE
