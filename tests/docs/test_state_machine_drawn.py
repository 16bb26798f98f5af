"""The drawn states and arrows are those of the code, read from where the lines of the picture begin and end."""

from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple

from defusedxml import ElementTree as SafeTree

from fedmon.experiment.states import ResourceState
from tests.docs.state_machine import ANY_TIME, FILE, svg, transitions

Edge = tuple[str, str, str]
_SVG = "{http://www.w3.org/2000/svg}"


class Area(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def has_on_border(self, x: float, y: float) -> bool:
        beside = x in (self.left, self.right) and self.top <= y <= self.bottom
        return beside or (y in (self.top, self.bottom) and self.left <= x <= self.right)

    def holds(self, other: Area) -> bool:
        is_beside = self.left > other.left or self.right < other.right
        return not is_beside and self.top <= other.top and self.bottom >= other.bottom

    def meets(self, other: Area) -> bool:
        is_beside = self.left >= other.right or other.left >= self.right
        return not is_beside and self.top < other.bottom and other.top < self.bottom


class Drawn(NamedTuple):
    """What is seen: boxes by the name in them, frames, arrows as their ends, and words by where they stand."""

    states: dict[str, Area]
    frames: list[Area]
    arrows: list[Area]
    words: list[tuple[str, Area]]


def drawn() -> Drawn:
    root = SafeTree.fromstring(FILE.read_text(encoding="utf-8"))
    rects: dict[str, list[Area]] = {"box": [], "frame": [], "paper": []}
    for rect in root.iter(f"{_SVG}rect"):
        left, top = float(rect.get("x", 0)), float(rect.get("y", 0))
        area = Area(left, top, left + float(rect.get("width")), top + float(rect.get("height")))
        rects[rect.get("class")].append(area)
    texts = [(each.text, word(each), each.get("class")) for each in root.iter(f"{_SVG}text")]
    named = [(text, area) for text, area, kind in texts if kind == "name"]
    states = {text: box for box in rects["box"] for text, area in named if box.holds(area)}
    arrows = [
        Area(*map(float, re.findall(r"\d+", path.get("d"))))
        for path in root.iter(f"{_SVG}path")
        if path.get("class") == "arrow"
    ]
    return Drawn(states, rects["frame"], arrows, [(text, area) for text, area, kind in texts if kind != "name"])


def word(text: SafeTree.Element) -> Area:
    """Return about where a word of 13 pixels stands; its letters are less than 8 wide on the average."""
    x, y, wide = float(text.get("x")), float(text.get("y")), 7.5 * len(text.text)
    left = x - wide / 2 if text.get("text-anchor") == "middle" or text.get("class") == "name" else x
    return Area(left, y - 11, left + wide, y + 3)


def edges(found: Drawn) -> set[Edge]:
    """Return each arrow with the verb that stands next to its middle; one from a frame is one from each state in it."""
    result = set()
    for arrow in found.arrows:
        starts = {name for name, box in found.states.items() if box.has_on_border(arrow.left, arrow.top)}
        for frame in found.frames:
            if frame.has_on_border(arrow.left, arrow.top):
                starts |= {name for name, box in found.states.items() if frame.holds(box)}
        ends = [name for name, box in found.states.items() if box.has_on_border(arrow.right, arrow.bottom)]
        if not starts or not ends:
            continue  # from the dot where a life begins, or to the ring where it ends
        middle = ((arrow.left + arrow.right) / 2, (arrow.top + arrow.bottom) / 2)
        verb = min(found.words, key=lambda each: distance(each[1], *middle))[0]
        result |= {(start, verb, end) for start in starts for end in ends}
    return result


def distance(area: Area, x: float, y: float) -> float:
    return max(area.left - x, x - area.right, 0) + max(area.top - y, y - area.bottom, 0)


def test_the_picture_has_every_state_and_the_transitions_that_verbs_make() -> None:
    found = drawn()
    tried = {(start.name, verb, end.name) for start, verb, end in transitions()}

    assert set(found.states) == {state.name for state in ResourceState}
    assert edges(found) - tried == set()
    assert {verb for start, verb, end in tried - edges(found) if start != end} <= ANY_TIME
    assert {("NEW", "discover", "DISCOVERED"), ("RESERVED", "provision", "PROVISIONED")} <= edges(found)


def test_nothing_in_the_picture_stands_on_anything_else() -> None:
    found = drawn()
    things = [*found.states.values(), *(area for _, area in found.words)]

    assert len(things) == len(ResourceState) + 12  # ten verbs on arrows, and the titles of two frames
    assert [pair for pair in combinations(things, 2) if pair[0].meets(pair[1])] == []
    for arrow in found.arrows:
        line = Area(min(arrow[::2]), min(arrow[1::2]) - 1, max(arrow[::2]), max(arrow[1::2]) + 1)
        assert [name for name, area in found.words if area.meets(line)] == []


def test_the_picture_is_the_one_that_the_code_draws() -> None:
    assert FILE.read_text(encoding="utf-8") == svg()
    assert "![The states of a resource" in (FILE.parent / "experiments.md").read_text(encoding="utf-8")
    assert f"({FILE.name})" in (FILE.parent / "experiments.md").read_text(encoding="utf-8")
