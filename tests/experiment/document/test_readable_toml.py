"""An experiment as a person writes it."""

from __future__ import annotations

import time

import pytest

from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.document import (
    Description,
    DescriptionError,
    ResourceDescription,
    from_toml,
    from_xml,
    to_toml,
    to_xml,
)
from fedmon.experiment.document.conditions import condition_from
from fedmon.experiment.states import ResourceAction, ResourceState

TEXT = """\
[experiment]
id = "two-sites"

[[resource]]
name = "site"
type = "fedmon::Node"

[[resource]]
name = "train"
type = "fedmon::Job"
connect = ["site"]
start = [
    "after site is READY for 2s",
    "when site.host_memory_used_ratio < 90 % for 3 samples within 1m",
]
stop = [{ group = ["site"], state = "FAILED" }]
retry.start = { times = 2 }

[resource.attributes]
plan = "mean.py"
"""
NAMES = {"train": 1, "a": 2, "b": 3, "c": 4}


def test_names_stand_for_guids_and_one_side_says_a_connection() -> None:
    site, train = from_toml(TEXT).resources

    assert (site.guid, train.guid) == (1, 2)
    assert (site.connections, train.connections) == ((2,), (1,))
    assert train.attributes == {"plan": "mean.py"}
    assert train.retry["start"].times == 2
    assert train.conditions == (
        (ResourceAction.START, StateCondition(number=1, group=(1,), state=ResourceState.READY, delay_s=2.0)),
        (
            ResourceAction.START,
            MetricCondition(
                number=2,
                group=(1,),
                timeout_s=60.0,
                metric=Metric(name="host_memory_used_ratio", comparison="<", value=0.9, samples=3),
            ),
        ),
        (ResourceAction.STOP, StateCondition(number=3, group=(1,), state=ResourceState.FAILED)),
    )


def test_what_is_written_reads_like_what_a_person_wrote() -> None:
    text = to_toml(from_toml(TEXT))

    assert '"after site is READY for 2s"' in text
    assert '"when site.host_memory_used_ratio < 0.9 for 3 samples within 60s"' in text
    assert '"after site is FAILED"' in text
    assert 'connect = ["site"]' in text
    assert from_toml(text) == from_toml(TEXT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "after train is STARTED for 2s",
            StateCondition(number=1, group=(1,), state=ResourceState.STARTED, delay_s=2.0),
        ),
        (
            "when train.accuracy > 0.9 for 3 samples",
            MetricCondition(number=1, group=(1,), metric=Metric(name="accuracy", comparison=">", value=0.9, samples=3)),
        ),
        (
            "2 of [a, b, c] are STOPPED within 60s",
            StateCondition(number=1, group=(2, 3, 4), at_least=2, state=ResourceState.STOPPED, timeout_s=60.0),
        ),
        ("a is ready", StateCondition(number=1, group=(2,), state=ResourceState.READY)),
        ("all of [a, b] are READY", StateCondition(number=1, group=(2, 3), state=ResourceState.READY)),
        ("any of [a, b] are READY", StateCondition(number=1, group=(2, 3), at_least=1, state=ResourceState.READY)),
        (
            "after 17 is STOPPED for 2m30s",
            StateCondition(number=1, group=(17,), state=ResourceState.STOPPED, delay_s=150),
        ),
        (
            "when 1 of [a, 17].x.y<=-1e-3 within 5ms",
            MetricCondition(
                number=1,
                group=(2, 17),
                at_least=1,
                timeout_s=0.005,
                metric=Metric(name="x.y", comparison="<=", value=-0.001),
            ),
        ),
    ],
)
def test_conditions_are_understood(text: str, expected: AnyCondition) -> None:
    assert condition_from(text, NAMES, number=1, where="x") == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "after", "train", "train is", "train is GONE", "after nobody is READY", "train is READY for", "[a, b",
        "train is READY for ever", "4 of [a, b, c] are READY", "train.x > ", "train.x > a", "train.x ~ 1",
        "a is READY b", "train.x > 1 for 2s samples", "train is READY within", "train is READY within 1 hour",
        "train.x > 1 for 3 sample x",        "train.x > 1.2.3",
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(DescriptionError, match="resource x: start"):
        condition_from(text, NAMES, number=1, where="resource x: start")


def test_long_nonsense_is_refused_at_once() -> None:
    began = time.process_time()
    long = (
        "a " * 40_000,
        "[" + "a," * 40_000,
        "a.x" + " " * 90_000,
        "within " * 10_000,
        "a is READY" + " within" * 9_000,
    )
    for text in long:
        with pytest.raises(DescriptionError):
            condition_from(text, NAMES, number=1, where="x")

    assert time.process_time() - began < 2


def test_a_large_experiment_is_written_and_read_in_time() -> None:
    condition = StateCondition(number=1, group=(1,), state=ResourceState.READY)
    description = Description(
        exp_id="e",
        resources=tuple(
            ResourceDescription(
                guid=guid, rtype="t", conditions=((ResourceAction.START, condition),), attributes={"a": guid}
            )
            for guid in range(1, 301)
        ),
    )
    began = time.process_time()

    assert from_xml(to_xml(description)) == description
    assert from_toml(to_toml(description)) == description
    assert time.process_time() - began < 5
