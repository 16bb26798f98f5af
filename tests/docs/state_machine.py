"""Draws `docs/resource-states.svg` from what the verbs do; run `python -m tests.docs.state_machine`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from fedmon.experiment import ExperimentController, ResourceFactory, ResourceManager
from fedmon.experiment.check.diagram import COLOURS
from fedmon.experiment.errors import InvalidStateError
from fedmon.experiment.states import ResourceState

FILE = Path(__file__).parents[2] / "docs/resource-states.svg"
VERBS = ("discover", "reserve", "provision", "deploy", "start", "stop", "fail", "release")
ANY_TIME = {"discover", "reserve", "provision"}
"""Drawn in their usual order alone; the table of the page says that they may be called in any."""

WIDTH, HEIGHT = 900, 424
_WIDE, _HIGH, _BETWEEN, _ASIDE = 130, 40, 76, 7
_FIRST = {ResourceState.NEW: (100, 84), ResourceState.READY: (203, 208), ResourceState.FAILED: (306, 348)}
"""Where rows begin; the states that follow stand to the right of each other."""


class Box(NamedTuple):
    """A rectangle of the picture."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def middle(self) -> tuple[int, int]:
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2


class Frame(NamedTuple):
    """A box around states; what leaves it leaves from each of them."""

    title: str
    states: frozenset[ResourceState]
    box: Box


FRAMES = (
    Frame("before READY", frozenset(s for s in ResourceState if s < ResourceState.READY), Box(36, 52, 864, 144)),
    Frame("not over", frozenset(s for s in ResourceState if s < ResourceState.FAILED), Box(16, 16, 884, 284)),
)
STYLE = """
  .paper { fill: #ffffff; }
  .frame { fill: none; stroke: #7d8590; stroke-dasharray: 5 4; }
  .box { stroke: #4b535d; }
  .name { fill: #1c2128; font-weight: 600; text-anchor: middle; }
  .arrow, .end { fill: none; stroke: #3d444d; stroke-width: 1.6; }
  .tip, .dot { fill: #3d444d; }
  .verb, .title { fill: #24292f; }
  .title { font-style: italic; fill: #57606a; }
  text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; }
    .frame { stroke: #848d97; }
    .arrow, .end { stroke: #c9d1d9; }
    .tip, .dot { fill: #c9d1d9; }
    .verb { fill: #e6edf3; }
    .title { fill: #9198a1; }
  }
"""


@functools.cache
def transitions() -> set[tuple[ResourceState, str, ResourceState]]:
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
                found.add((state, verb, rm.state))
            ec.give_up()
    return found


def places() -> dict[ResourceState, Box]:
    """Return where each state stands."""
    found = {}
    left = top = 0
    for state in ResourceState:
        left, top = _FIRST.get(state, (left, top))
        found[state] = Box(left, top, left + _WIDE, top + _HIGH)
        left += _WIDE + _BETWEEN
    return found


def arrows() -> Iterator[tuple[str, Box, Box]]:
    """Return the verb, where it begins and where it leads, with one arrow for all states in a frame."""
    boxes = places()
    done = transitions()
    for verb in VERBS:
        for end in sorted({end for _, one, end in done if one == verb}):
            starts = {start for start, one, to in done if (one, to) == (verb, end) and start is not end}
            if verb in ANY_TIME:
                starts &= {ResourceState(end - 1)}
            yield from ((verb, start, boxes[end]) for start in _gathered(starts, boxes))


def _gathered(starts: Collection[ResourceState], boxes: dict[ResourceState, Box]) -> Iterator[Box]:
    whole = max((one for one in FRAMES if one.states <= set(starts)), key=lambda one: len(one.states), default=None)
    if whole is not None:
        yield whole.box
    yield from (boxes[state] for state in sorted(starts) if whole is None or state not in whole.states)


def svg() -> str:
    """Return the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">',
        "<title>The states of a resource, and the verbs that lead from one to another</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
    ]
    for frame in FRAMES:
        parts += [_rect("frame", frame.box, 10), _text("title", frame.box.left + 12, frame.box.top + 20, frame.title)]
    for state, box in places().items():
        parts += [
            _rect("box", box, 8, fill=COLOURS[state]),
            _text("name", box.middle[0], box.middle[1] + 5, state.name),
        ]
    found = list(arrows())
    for verb, start, end in found:
        parts += _arrow(verb, start, end, is_returned=any((end, start) == pair[1:] for pair in found))
    parts += _ends(places())
    return "\n".join([*parts, "</svg>", ""])


def _arrow(verb: str, start: Box, end: Box, *, is_returned: bool) -> list[str]:
    """Return a straight arrow with its verb, beside the middle where another leads the other way."""
    if start.top < end.top:
        x = end.middle[0]
        return [*_line(x, start.bottom, x, end.top), _text("verb", x + 8, (start.bottom + end.top) // 2 + 4, verb)]
    is_back = end.left < start.left
    y = end.middle[1] + (0 if not is_returned else _ASIDE if is_back else -_ASIDE)
    x1, x2 = (start.left, end.right) if is_back else (start.right, end.left)
    label = _text("verb", (x1 + x2) // 2, y + (17 if is_back else -7), verb, anchor=' text-anchor="middle"')
    return [*_line(x1, y, x2, y), label]


def _ends(boxes: dict[ResourceState, Box]) -> list[str]:
    """Return the dot where a life begins, and the ring where it ends."""
    x, y = boxes[ResourceState.NEW].left, boxes[ResourceState.NEW].middle[1]
    last, below = boxes[ResourceState.RELEASED].right, boxes[ResourceState.RELEASED].middle[1]
    return [
        f'<circle class="dot" cx="{x - 38}" cy="{y}" r="6"/>', *_line(x - 32, y, x, y),
        *_line(last, below, last + 36, below),
        f'<circle class="end" cx="{last + 44}" cy="{below}" r="8"/>',
        f'<circle class="dot" cx="{last + 44}" cy="{below}" r="4"/>',
    ]  # fmt: skip


def _line(x1: int, y1: int, x2: int, y2: int) -> list[str]:
    """Return a line that goes right, left or down, and its tip."""
    along = (x2 > x1) - (x2 < x1)
    down = 0 if along else 1
    back = (x2 - 9 * along, y2 - 9 * down)
    tip = (x2, y2, back[0] + 5 * down, back[1] + 5 * abs(along), back[0] - 5 * down, back[1] - 5 * abs(along))
    points = " ".join(f"{tip[i]},{tip[i + 1]}" for i in (0, 2, 4))
    return [f'<path class="arrow" d="M {x1} {y1} L {x2} {y2}"/>', f'<polygon class="tip" points="{points}"/>']


def _rect(kind: str, box: Box, radius: int, *, fill: str = "") -> str:
    colour = f' fill="{fill}"' if fill else ""
    wide, high = box.right - box.left, box.bottom - box.top
    return f'<rect class="{kind}" x="{box.left}" y="{box.top}" width="{wide}" height="{high}" rx="{radius}"{colour}/>'


def _text(kind: str, x: int, y: int, text: str, *, anchor: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}"{anchor}>{escape(text)}</text>'


if __name__ == "__main__":
    FILE.write_text(svg(), encoding="utf-8")
