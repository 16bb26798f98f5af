"""Experiments as pictures: states as colours, conditions as edges that say what they are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from defusedxml import ElementTree as SafeTree
from PIL import Image

from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.experiment import events
from fedmon.experiment.conditions import Metric, MetricCondition, StateCondition
from fedmon.experiment.drawing import COLOURS, MAX_DRAWN, PFormats, dot_of, draw, picture_of, placed, plot
from fedmon.experiment.machine import step
from fedmon.experiment.plan_problems import Facts
from fedmon.experiment.planning import plan
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState


def after(state: State, *happened: events.AnyEvent) -> State:
    for event in happened:
        state, _ = step(state, event)
    return state


def experiment() -> State:
    condition = StateCondition(number=1, group=(1, 2), at_least=1, state=ResourceState.STOPPED, delay_s=2, timeout_s=60)
    metric = MetricCondition(number=2, group=(3,), metric=Metric(name="acc$ur$acy", comparison=">", value=0.9))
    return after(
        State(),
        *(events.Registered(t=0, guid=guid, rtype='a "quoted" \\ type') for guid in (1, 2, 3)),
        events.Connected(t=0, guid=1, other=3),
        events.ConditionAdded(t=0, guids=(3,), action=ResourceAction.START, condition=condition),
        events.ConditionAdded(t=0, guids=(3,), action=ResourceAction.STOP, condition=metric),
        events.SetWanted(t=0, guids=(2,), name="rate", value=1, condition=StateCondition(
            number=3, group=(3,), state=ResourceState.READY)),
        events.Became(t=1, guids=(2,), state=ResourceState.STARTED),
    )  # fmt: skip


def test_dot_tells_states_connections_and_conditions() -> None:
    lines = dot_of(picture_of(experiment(), title='the "first"', names={1: "one"})).splitlines()

    assert lines[0] == 'digraph "the \\"first\\"" {'
    started = COLOURS[ResourceState.STARTED]
    assert f'  2 [label="2\\na \\"quoted\\" \\\\ type\\nSTARTED", fillcolor="{started}"];' in lines
    assert any(line.startswith('  1 [label="1 one\\n') for line in lines)
    assert sum("1 -> 3 [dir=none" in line for line in lines) == 1
    assert any('2 -> 3 [label="start: 1 of 2 STOPPED for 2 s within 60 s"' in line for line in lines)
    assert any('3 -> 3 [label="stop: acc$ur$acy > 0.9"' in line for line in lines)
    assert any('3 -> 2 [label="set rate: READY"' in line for line in lines)
    assert lines[-1] == "}"


def test_svg_holds_every_label_as_text() -> None:
    drawn = draw(picture_of(experiment(), title="first", names={1: "one"}), "svg")

    text = "".join(SafeTree.fromstring(drawn.decode().replace(_doctype(drawn.decode()), "")).itertext())
    for word in ("1 one", "STARTED", "NEW", "stop: acc$ur$acy > 0.9", "set rate: READY", "first"):
        assert word in text
    assert COLOURS[ResourceState.STARTED] in drawn.decode()


def _doctype(text: str) -> str:
    start = text.find("<!DOCTYPE")
    return text[start : text.index(">", start) + 1] if start >= 0 else "\0"


def test_png_is_in_the_colours_of_the_states() -> None:
    drawn = Image.open(io.BytesIO(draw(picture_of(experiment()), "png"))).convert("RGB")

    colours = {colour for _, colour in drawn.getcolors(1 << 24) or []}
    assert tuple(bytes.fromhex(COLOURS[ResourceState.STARTED][1:])) in colours
    assert tuple(bytes.fromhex(COLOURS[ResourceState.FAILED][1:])) not in colours


def test_a_condition_on_many_is_drawn_once() -> None:
    condition = StateCondition(number=1, group=tuple(range(1, 7)), at_least=2, state=ResourceState.STOPPED)
    state = after(
        State(),
        *(events.Registered(t=0, guid=guid, rtype="t") for guid in range(1, 13)),
        events.ConditionAdded(t=0, guids=tuple(range(7, 13)), action=ResourceAction.START, condition=condition),
    )

    picture = picture_of(state)

    assert len(picture.edges) == 36
    assert draw(picture, "svg").decode().count("2 of 6") == 1


def test_what_is_wrong_is_drawn_red() -> None:
    state = after(
        experiment(),
        events.ConditionAdded(
            t=0,
            guids=(1,),
            action=ResourceAction.START,
            condition=StateCondition(number=4, group=(1,), state=ResourceState.STARTED),
        ),
    )
    found = plan(state, Facts(names={1: "one"}))

    assert '1 -> 1 [label="start: STARTED", color="#d00000"' in found.dot()
    assert "#d00000" in found.svg()


@pytest.mark.parametrize(
    ("kind", "name"), [("figure", "e_1.png"), (PFormats.DOT, "e_1.dot"), (PFormats.SVG, "e_1.svg")]
)
def test_a_plot_is_a_file_of_its_format(tmp_path: Path, kind: str, name: str) -> None:
    path = plot(picture_of(experiment()), tmp_path / "new", "e_1", format=kind)

    assert path == tmp_path / "new" / name
    assert path.stat().st_size > 100
    assert list(path.parent.iterdir()) == [path]


def test_a_plot_that_cannot_be_written_leaves_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / "exp.dot").mkdir()

    with pytest.raises(StorageError, match=r"exp\.dot: Is a directory"):
        plot(picture_of(experiment()), tmp_path, "exp", format=PFormats.DOT)

    assert [each.name for each in tmp_path.iterdir()] == ["exp.dot"]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    many = after(State(), *(events.Registered(t=0, guid=guid, rtype="t") for guid in range(MAX_DRAWN + 1)))
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidInputError, match="dot"):
        draw(picture_of(many), "png")
    assert dot_of(picture_of(many)).count("fillcolor") == MAX_DRAWN + 1
    with pytest.raises(InvalidInputError, match="figure, dot, svg"):
        plot(picture_of(State()), tmp_path, "e", format="pdf")
    with pytest.raises(StorageError):
        plot(picture_of(State()), tmp_path / "file", "e", format="dot")
    assert draw(picture_of(State()), "png").startswith(b"\x89PNG")


def test_each_resource_has_a_place_of_its_own_below_what_it_waits_for() -> None:
    places = placed(range(1, 101), [(guid, guid + 7) for guid in range(1, 94)] + [(99, 98), (98, 99), (5, 5)])

    assert len(set(places.values())) == 100
    assert all(places[guid + 7][1] > places[guid][1] for guid in range(1, 80))
    assert placed([], []) == {}
