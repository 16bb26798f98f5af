"""A diagram shows states as colours and conditions as arrows, and says the same in each format."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from defusedxml import ElementTree as SafeTree
from PIL import Image

from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.experiment import events
from fedmon.experiment.check.diagram import (
    COLOURS,
    MAX_DRAWN,
    PFormats,
    content_of,
    dot_of,
    mermaid_of,
    picture_of,
    plot,
)
from fedmon.experiment.check.plan import plan
from fedmon.experiment.conditions import Metric, MetricCondition, StateCondition
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.report.diagram import Edge, laid_out
from tests.experiment.check.planned import after, experiment


def furnished() -> State:
    """Return resources with each kind of line between them."""
    condition = StateCondition(number=1, group=(1, 2), at_least=1, state=ResourceState.STOPPED, delay_s=2, timeout_s=60)
    metric = MetricCondition(number=2, group=(3,), metric=Metric(name="acc$ur$acy", comparison=">", value=0.9))
    ready = StateCondition(number=3, group=(3,), state=ResourceState.READY)
    return after(
        experiment(['a "quoted" \\ type'] * 3, name="one"),
        events.Connected(t=0, guid=1, other=3),
        events.ConditionAdded(t=0, guids=(3,), action=ResourceAction.START, condition=condition),
        events.ConditionAdded(t=0, guids=(3,), action=ResourceAction.STOP, condition=metric),
        events.SetWanted(t=0, guids=(2,), name="rate", value=1, condition=ready),
        events.Became(t=1, guids=(2,), state=ResourceState.STARTED),
    )


def test_dot_tells_states_connections_and_conditions() -> None:
    lines = dot_of(picture_of(furnished(), title='the "first"')).splitlines()

    assert lines[0] == 'digraph "the \\"first\\"" {'
    started = COLOURS[ResourceState.STARTED]
    assert f'  2 [label="2\\na \\"quoted\\" \\\\ type\\nSTARTED", fillcolor="{started}"];' in lines
    assert any(line.startswith('  1 [label="1 one\\n') for line in lines)
    assert sum("1 -> 3 [dir=none" in line for line in lines) == 1
    assert any('2 -> 3 [label="start: 1 of 2 STOPPED for 2 s within 60 s"' in line for line in lines)
    assert any('3 -> 3 [label="stop: acc$ur$acy > 0.9"' in line for line in lines)
    assert any('3 -> 2 [label="set rate: READY"' in line for line in lines)
    assert lines[-1] == "}"


def test_mermaid_tells_the_same_and_reads_no_text_as_syntax() -> None:
    lines = mermaid_of(picture_of(furnished(), title='the "first"')).splitlines()

    assert lines[:4] == ["---", 'title: "the \\"first\\""', "---", "flowchart TD"]
    assert '  r2["2<br>a #34;quoted#34; #92; type<br>STARTED"]' in lines
    assert "  r1 -.- r3" in lines
    assert '  r2 -->|"start: 1 of 2 STOPPED for 2 s within 60 s"| r3' in lines
    assert '  r3 -->|"stop: acc#36;ur#36;acy #62; 0.9"| r3' in lines
    assert f"  style r2 fill:{COLOURS[ResourceState.STARTED]},stroke:#444444,color:#000000" in lines


def test_svg_holds_every_label_as_text_and_png_the_colours_of_the_states() -> None:
    picture = picture_of(furnished(), title="first")
    svg = content_of(picture, "svg").decode()
    png = Image.open(io.BytesIO(content_of(picture, "png"))).convert("RGB")

    before, _, rest = svg.partition("<!DOCTYPE")
    text = "".join(SafeTree.fromstring(before + rest.partition(">")[2]).itertext())
    for word in ("1 one", "STARTED", "NEW", "stop: acc$ur$acy > 0.9", "set rate: READY", "first"):
        assert word in text
    colours = {colour for _, colour in png.getcolors(1 << 24) or []}
    for state, is_there in ((ResourceState.STARTED, True), (ResourceState.FAILED, False)):
        assert (COLOURS[state] in svg) is is_there
        assert (tuple(bytes.fromhex(COLOURS[state][1:])) in colours) is is_there


def test_a_condition_between_many_is_drawn_once() -> None:
    condition = StateCondition(number=1, group=tuple(range(1, 7)), at_least=2, state=ResourceState.STOPPED)
    added = events.ConditionAdded(t=0, guids=tuple(range(7, 13)), action=ResourceAction.START, condition=condition)

    picture = picture_of(after(experiment(12), added))

    assert len(picture.edges) == 12
    for text in (content_of(picture, "svg").decode(), dot_of(picture), mermaid_of(picture)):
        assert text.count("2 of 6") == 1
    one = StateCondition(number=2, group=(1,), timeout_s=60.0, state=ResourceState.STOPPED)
    added = events.ConditionAdded(t=0, guids=(2,), action=ResourceAction.START, condition=one)
    assert ">within 60 s<" in content_of(picture_of(after(experiment(2), added)), "svg").decode()  # on one line


def test_no_line_is_cut_off_at_the_sides() -> None:
    conditions = [
        StateCondition(number=number, group=tuple(range(number, number + 4)), state=ResourceState.STOPPED)
        for number in range(1, 10)
    ]
    added = [
        events.ConditionAdded(t=0, guids=(12 + each.number,), action=ResourceAction.START, condition=each)
        for each in conditions
    ]
    png = Image.open(io.BytesIO(content_of(picture_of(after(experiment(21), *added)), "png"))).convert("RGB")

    for x in (0, png.width - 1):
        assert png.crop((x, 0, x + 1, png.height)).getcolors() == [(png.height, (255, 255, 255))]


def test_errors_are_red() -> None:
    circle = StateCondition(number=4, group=(1,), state=ResourceState.STARTED)
    state = after(furnished(), events.ConditionAdded(t=0, guids=(1,), action=ResourceAction.START, condition=circle))

    picture = picture_of(state, problems=plan(state).problems)

    assert '1 -> 1 [label="start: STARTED", color="#d00000"' in dot_of(picture)
    assert "#d00000" in content_of(picture, "svg").decode()


@pytest.mark.parametrize(
    ("kind", "name"), [("figure", "e.png"), ("dot", "e.dot"), ("svg", "e.svg"), ("mermaid", "e.mmd")]
)
def test_a_plot_is_a_file_of_its_format_and_shown_if_asked(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)

    path = plot(picture_of(furnished()), tmp_path / "new", "e", format=kind, show=True)

    assert shown == [path.as_uri()]
    assert path == tmp_path / "new" / name
    assert path.stat().st_size > 100
    assert list(path.parent.iterdir()) == [path]


def test_a_plot_that_cannot_be_made_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "exp.dot").mkdir()
    many = picture_of(experiment(MAX_DRAWN + 1))

    with pytest.raises(StorageError, match=r"exp\.dot: Is a directory"):
        plot(picture_of(furnished()), tmp_path, "exp", format=PFormats.DOT)
    assert [each.name for each in tmp_path.iterdir()] == ["exp.dot"]
    with pytest.raises(InvalidInputError, match="dot or mermaid"):
        content_of(many, "png")
    assert dot_of(many).count("fillcolor") == MAX_DRAWN + 1
    with pytest.raises(InvalidInputError, match="figure, dot, svg, mermaid"):
        plot(many, tmp_path, "e", format="pdf")
    assert content_of(picture_of(State()), "png").startswith(b"\x89PNG")


def test_only_what_is_drawn_needs_the_extra() -> None:
    code = (
        "import sys; sys.modules['networkx'] = sys.modules['matplotlib'] = sys.modules['numpy'] = None\n"
        "import fedmon.experiment.cli.reports\n"
        "from fedmon.experiment.check.diagram import *; from fedmon.experiment.situation import State\n"
        "print(len(dot_of(picture_of(State()))) > 50, len(mermaid_of(picture_of(State()))) > 10)\n"
        "content_of(picture_of(State()), 'svg')"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout == "True True\n"
    assert "install fedmon with its extra [report]" in done.stderr.splitlines()[-1]


# --- the layout -------------------------------------------------------------------------------------------------------


def lines(*pairs: tuple[int, int]) -> list[Edge]:
    return [Edge(start=start, end=end, kind="", colour="") for start, end in pairs]


def test_each_box_has_a_place_of_its_own_below_those_that_lead_to_it() -> None:
    edges = lines(*((guid, guid + 7) for guid in range(1, 94)), (99, 98), (98, 99), (5, 5))

    places, ways = laid_out(range(1, 101), edges)

    assert len(set(places.values())) == 100
    assert all(places[guid + 7][1] < places[guid][1] for guid in range(1, 90))
    assert ways[-1] == ()
    assert laid_out([], []) == ({}, [])


def test_no_line_passes_behind_a_box() -> None:
    # Each round waits for the one before and for the first, so most lines pass rows.
    keys = range(1, 25)
    pairs = [*itertools.pairwise(keys), *((1, key) for key in keys if key > 2), (24, 1), (5, 3), *((2, 24),) * 3]
    wide = [(1, key) for key in range(30, 60)] + [(key, 60) for key in range(30, 60)]
    edges = lines(*pairs, *wide)

    places, ways = laid_out([*keys, *range(30, 61)], edges)

    for edge, way in zip(edges, ways, strict=True):
        for (x1, y1), (x2, y2) in itertools.pairwise(way):
            for t in (step / 20 for step in range(21)):
                x, y = x1 + (x2 - x1) * t, y1 + (y2 - y1) * t
                inside = [key for key, (bx, by) in places.items() if abs(x - bx) < 0.87 and abs(y - by) < 0.37]
                assert not inside, f"{edge.start} -> {edge.end} passes {inside}"


def test_lines_between_the_same_boxes_are_apart() -> None:
    _, ways = laid_out([1, 2], lines((1, 2), (1, 2), (1, 2), (2, 1)))

    assert len({way[0][0] for way in ways}) == 4
