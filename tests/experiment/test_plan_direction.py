"""Where the quick look says that all waits go one way, the whole plan finds no circle."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from fedmon.experiment import events
from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.machine import step
from fedmon.experiment.planning import go_one_way, plan
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState

GUIDS = range(1, 5)
CIRCLES = {"condition-cycle", "group-deadlock"}
Wish = tuple[int, ResourceAction, tuple[int, ...], ResourceState | Metric | None, int | None]
"""Who waits with what, for whom to be what (null: what the same action brings), and for how many of them."""

guids = st.sampled_from(GUIDS)
states = st.sampled_from([s for s in ResourceState if s is not ResourceState.NEW])
brought = {
    ResourceAction.DEPLOY: ResourceState.READY,
    ResourceAction.START: ResourceState.STARTED,
    ResourceAction.STOP: ResourceState.STOPPED,
}
groups = st.lists(guids, min_size=1, max_size=3, unique=True).map(tuple)
metrics = st.just(Metric(name="loss", comparison="<", value=1))
wishes_of_any_kind = st.lists(
    st.tuples(guids, st.sampled_from(ResourceAction), groups, st.none() | states | metrics, st.none() | st.just(1)),
    min_size=2,
    max_size=6,
)
ways = st.sampled_from(["any", "up", "down"])


def along(way: str, wishes: list[Wish]) -> list[Wish]:
    """Leave out whom a wish waits for against a way, with the last wish as it is: one that may make a circle."""
    if way == "any":
        return wishes
    turned: list[Wish] = []
    for guid, action, group, wanted, at_least in wishes[:-1]:
        kept = tuple(whom for whom in group if (whom > guid if way == "up" else whom < guid))
        if kept:
            turned.append((guid, action, kept, wanted, at_least))
    return [*turned, *wishes[-1:]]


def experiment(wishes: list[Wish], rtypes: list[str], reached: dict[int, ResourceState]) -> State:
    happened: list[events.AnyEvent] = [
        events.Registered(t=0, guid=guid, rtype=rtype) for guid, rtype in zip(GUIDS, rtypes, strict=True)
    ]
    for number, (guid, action, group, wanted, at_least) in enumerate(wishes, 1):
        condition: AnyCondition
        if isinstance(wanted, Metric):
            condition = MetricCondition(number=number, group=group, at_least=at_least, metric=wanted)
        else:
            condition = StateCondition(number=number, group=group, at_least=at_least, state=wanted or brought[action])
        happened.append(events.ConditionAdded(t=0, guids=(guid,), action=action, condition=condition))
    happened += [events.Became(t=1, guids=(guid,), state=state) for guid, state in reached.items()]
    state = State()
    for each in happened:
        state, _ = step(state, each)
    return state


@given(
    wishes_of_any_kind,
    ways,
    st.lists(st.sampled_from(["t", "fedmon::Job", "fedmon::Node"]), min_size=len(GUIDS), max_size=len(GUIDS)),
    st.dictionaries(guids, states, max_size=2),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_no_circle_is_found_where_all_waits_go_one_way(
    wishes: list[Wish], way: str, rtypes: list[str], reached: dict[int, ResourceState], together: bool
) -> None:
    state = experiment(along(way, wishes), rtypes, reached)

    is_one_way = go_one_way(state.resources, GUIDS)
    found = plan(state, deploying=GUIDS, wait_all_ready=together)

    event(f"one way: {is_one_way}, with {len(wishes)} conditions")
    if is_one_way:
        assert [problem for problem in found.problems if problem.kind in CIRCLES] == []
