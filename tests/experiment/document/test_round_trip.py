"""Whatever a document says comes back from the other form of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedmon.experiment.conditions import Metric, MetricCondition, StateCondition
from fedmon.experiment.document import (
    Description,
    FailurePolicy,
    Net,
    QuorumDescription,
    ResourceDescription,
    SetDescription,
    Topology,
    TopologyEdge,
    TopologyNode,
    even,
    from_toml,
    from_xml,
    read,
    to_toml,
    to_xml,
    write,
)
from fedmon.experiment.events import Retry
from fedmon.experiment.states import ResourceAction, ResourceState

WHOLE = even(
    Description(
        exp_id="exp_1.a",
        run_id="20261121170000123456",
        nthreads=7,
        local_dir='/tmp/x <&> "y"',
        persist=True,
        failures=FailurePolicy(
            policy="quorum",
            quorums=(
                QuorumDescription(at_least=2, group=(10, 3, 4)), QuorumDescription(at_least=1, rtype="fedmon::Job")
            ),
        ),
        topology=Topology(
            kind="linear",
            nodes=(
                TopologyNode(nid=0, is_target=True, ips=("10.0.0.1",), annotations={"a": 1, "b": "True", "c": True}),
                TopologyNode(nid="0", is_source=True, annotations={"ips": "mine", "d": 1.5}),
            ),
            edges=(
                TopologyEdge(
                    nid1=0,
                    nid2="0",
                    net=Net(ip1="10.0.0.1", ip2="10.0.0.2", mask="255.255.255.252", network="10.0.0.0", prefix=30),
                    annotations={"net": "mine"},
                ),
            ),
        ),
        resources=(
            ResourceDescription(guid=10, rtype="fedmon::Node", name="site"),
            ResourceDescription(
                guid=3,
                rtype="fedmon::Job",
                name="train",
                attributes={
                    "text": "None", "null": None, "yes": True, "count": 10**30, "ratio": 0.1, "empty": "",
                    "lines": "a\n\tb\r", "control": "\x00\x1b", "half": "\ud800", "table": {"a": [1, None, {"b": 2.5}]},
                    "json": {"json": "1"}, "many": [1, "a"], "": "no name", "wide": float("inf"), "ü.x": "[1, 2]",
                },
                connections=(10,),
                conditions=(
                    (ResourceAction.STOP, StateCondition(number=1, group=(10,), state=ResourceState.FAILED)),
                    (
                        ResourceAction.START,
                        StateCondition(
                            number=2, group=(10, 4, 99), at_least=2, timeout_s=60.5, delay_s=0.1,
                            state=ResourceState.READY,
                        ),
                    ),
                    (
                        ResourceAction.START,
                        MetricCondition(
                            number=3, group=(10,), metric=Metric(name="mem", comparison=">=", value=0.9, samples=3)
                        ),
                    ),
                    (
                        ResourceAction.DEPLOY,
                        MetricCondition(
                            number=4,
                            group=(10, 4),
                            at_least=1,
                            metric=Metric(name="odd name = 1", comparison="!=", value=-1e-300),
                        ),
                    ),
                ),
                sets=(
                    SetDescription(attribute="rate", value=None),
                    SetDescription(
                        attribute="rate",
                        value=[1],
                        condition=StateCondition(number=9, group=(4,), state=ResourceState.STARTED, delay_s=1e-7),
                    ),
                ),
                traces=("stdout", "a b"),
                retry={"start": Retry(times=3, delay_s=0.5, factor=1.5, max_delay_s=9.0), "deploy": Retry(times=1)},
                timeouts={"start": 5.0, "release": 0.25},
                state=ResourceState.STOPPED,
                times=((ResourceState.READY, 1763740000.1234567), (ResourceState.DISCOVERED, 5.0)),
            ),
            ResourceDescription(guid=4, rtype="custom type", connections=(3, 77)),
        ),
    )
)  # fmt: skip


def test_nothing_is_lost_in_xml() -> None:
    assert from_xml(to_xml(WHOLE)) == WHOLE


def test_nothing_is_lost_in_toml() -> None:
    assert from_toml(to_toml(WHOLE)) == WHOLE


def test_nothing_is_lost_from_xml_over_toml_and_back() -> None:
    assert from_xml(to_xml(from_toml(to_toml(from_xml(to_xml(WHOLE)))))) == WHOLE


def test_states_and_actions_are_kept_by_name() -> None:
    text = to_xml(WHOLE)

    assert 'state="STOPPED"' in text
    assert 'action="STOP"' in text
    assert 'state="6"' not in text


@pytest.mark.parametrize("suffix", [".xml", ".toml"])
def test_a_file_gives_what_was_written(tmp_path: Path, suffix: str) -> None:
    path = write(WHOLE, tmp_path / "new" / f"exp{suffix}")

    assert read(path) == WHOLE
    assert [each.name for each in path.parent.iterdir()] == [path.name]


guids = st.integers(min_value=1, max_value=9)
seconds = st.none() | st.floats(min_value=0, max_value=1e6)
groups = st.lists(guids, min_size=1, max_size=3, unique=True).map(tuple)
values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=3), each, max_size=2),
    max_leaves=3,
)
state_conditions = st.builds(
    StateCondition,
    number=st.just(1),
    group=groups,
    state=st.sampled_from(ResourceState),
    delay_s=st.floats(min_value=0, max_value=1e6),
    timeout_s=seconds,
    at_least=st.none() | st.just(1),
)
metric_conditions = st.builds(
    MetricCondition,
    number=st.just(1),
    group=groups,
    metric=st.builds(
        Metric,
        name=st.text(min_size=1, alphabet=st.characters(min_codepoint=32, max_codepoint=0x2FF)),
        comparison=st.sampled_from([">", ">=", "<", "<=", "==", "!="]),
        value=st.floats(allow_nan=False, allow_infinity=False),
        samples=st.integers(min_value=1, max_value=5),
    ),
    timeout_s=seconds,
)
conditions = state_conditions | metric_conditions
quorums = st.builds(
    QuorumDescription, at_least=st.integers(min_value=1, max_value=3), rtype=st.sampled_from(["a", "fedmon::Node"])
)
failures = (
    st.none()
    | st.sampled_from([FailurePolicy(policy="optional"), FailurePolicy(policy="critical")])
    | st.builds(FailurePolicy, policy=st.just("quorum"), quorums=st.lists(quorums, min_size=1, max_size=2).map(tuple))
)


def without_own_state(resource: ResourceDescription) -> ResourceDescription:
    """Take out what no experiment takes: conditions on the resource itself."""
    kept = tuple(each for each in resource.conditions if resource.guid not in each[1].group)
    return replace(resource, conditions=kept)


descriptions = st.builds(
    lambda resources, policy: even(
        Description(
            exp_id="e",
            failures=policy,
            resources=tuple({each.guid: without_own_state(each) for each in resources}.values()),
        )
    ),
    st.lists(
        st.builds(
            ResourceDescription,
            guid=guids,
            rtype=st.sampled_from(["a", "fedmon::Node"]),
            attributes=st.dictionaries(st.sampled_from(["a", "b c", "é"]), values, max_size=2),
            connections=st.just(()),
            conditions=st.lists(st.tuples(st.sampled_from(ResourceAction), conditions), max_size=3).map(tuple),
            sets=st.lists(
                st.builds(SetDescription, attribute=st.just("a"), value=values, condition=st.none() | conditions),
                max_size=1,
            ).map(tuple),
        ),
        max_size=3,
    ),
    failures,
)


LONG_DELAY = StateCondition(number=1, group=(1,), state=ResourceState.STARTED, delay_s=0.008932394977904306)


@example(
    Description(
        exp_id="e",
        resources=tuple(
            ResourceDescription(guid=guid, rtype="a", conditions=((ResourceAction.START, LONG_DELAY),) * (guid - 1))
            for guid in (1, 2)
        ),
    )
)
@given(descriptions)
@settings(max_examples=25, deadline=None)
def test_any_description_comes_back_from_both_forms(description: Description) -> None:
    assert from_xml(to_xml(description)) == description
    assert from_toml(to_toml(description)) == description
