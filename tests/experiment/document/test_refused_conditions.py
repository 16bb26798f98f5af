"""Files go through the checks of calls: a condition that no call takes is refused where it stands in its file."""

from __future__ import annotations

import pytest
from fedmon.experiment.document.errors import ConditionTextError, DescriptionError

from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.document import Description, ResourceDescription, even, from_toml, from_xml
from fedmon.experiment.states import ResourceAction, ResourceState


def xml(condition: str) -> str:
    return (
        '<experiment exp_id="e" fedmon="1"><rms><rm guid="1" rtype="t"/><rm guid="2" rtype="t"/><rm guid="3" rtype="t">'
        f'<conditions><condition action="START" {condition}/></conditions></rm></rms></experiment>'
    )


def toml(condition: str, *, more: str = "") -> str:
    return (
        '[experiment]\nid = "e"\n[[resource]]\nname = "a"\ntype = "t"\n[[resource]]\nname = "b"\ntype = "t"\n'
        f'[[resource]]\nname = "c"\ntype = "t"\nstart = [{condition}]\n{more}'
    )


METRIC = 'group="[1, 2]" metric="m" comparison="&gt;"'


@pytest.mark.parametrize(
    "condition",
    [
        f'{METRIC} value="nan"',
        f'{METRIC} value="inf"',
        f'{METRIC} value="1" samples="0"',
        f'{METRIC} value="1" samples="-5"',
        f'{METRIC} value="1" at_least="0"',
        'group="[1, 2]" state="STARTED" at_least="0"',
        'group="[1, 2]" state="STARTED" at_least="-1"',
        'group="[1, 2]" state="STARTED" at_least="3"',
        'group="[1, 1]" state="STARTED" at_least="2"',
        'group="[]" state="STARTED"',
    ],
)
def test_xml_is_refused_with_resource_and_condition(condition: str) -> None:
    with pytest.raises(ConditionTextError, match="resource 3: START condition 1"):
        from_xml(xml(condition))


@pytest.mark.parametrize(
    "condition",
    [
        '"when a.m > 1e999"',
        '"when a.m > -1e999"',
        '"when a.m > 1 for 0 samples"',
        '"0 of [a, b] are STARTED"',
        '"3 of [a, b] are STARTED"',
        '"2 of [a, a] are STARTED"',
        '"[] are STARTED"',
        '{ group = [], state = "STARTED" }',
        '{ group = ["a"], metric = "m", value = inf }',
        '{ group = ["a"], metric = "m", value = nan }',
        '{ group = ["a"], metric = "m", value = 1, samples = 0 }',
        '{ group = ["a"], metric = "m", value = 1, at_least = 0 }',
        '{ group = ["a", "b"], state = "STARTED", at_least = 0 }',
        '{ group = ["a"], state = "STARTED", delay_s = -1 }',
        '{ group = ["a"], state = "STARTED", timeout_s = nan }',
    ],
)
def test_toml_is_refused_with_resource_and_condition(condition: str) -> None:
    with pytest.raises(ConditionTextError, match="resource c: start condition 1"):
        from_toml(toml(condition))


def test_a_resource_that_would_wait_for_itself_is_refused() -> None:
    for read, text in ((from_xml, xml('group="[1, 3]" state="STARTED"')), (from_toml, toml('"[a, c] are STOPPED"'))):
        with pytest.raises(ConditionTextError, match=r"resource [3c]: start condition 1 .*itself"):
            read(text)

    assert from_toml(toml('"after c is READY", "when c.m > 1"')).resources[2].conditions[0][1].group == (3,)


def test_what_is_set_by_a_condition_is_refused_with_its_attribute() -> None:
    with pytest.raises(ConditionTextError, match="resource c: set rate"):
        from_toml(toml("", more='set = [{ attribute = "rate", value = 1, when = "0 of [a, b] are STARTED" }]'))


def test_who_stands_twice_in_a_group_counts_once() -> None:
    found = [
        from_xml(xml('group="[1, 2, 1]" state="STARTED" at_least="2"')),
        from_toml(toml('"2 of [a, b, a] are STARTED"')),
        from_toml(toml('{ group = ["a", "b", 1], state = "STARTED", at_least = 2 }')),
    ]

    expected = StateCondition(number=1, group=(1, 2), at_least=2, state=ResourceState.STARTED)
    assert [each.resources[2].conditions for each in found] == [((ResourceAction.START, expected),)] * 3


def test_a_description_that_a_program_makes_is_checked_likewise() -> None:
    condition = StateCondition(number=1, group=(1,), at_least=0, state=ResourceState.STARTED)
    waiting = ResourceDescription(guid=2, rtype="t", conditions=((ResourceAction.START, condition),))

    with pytest.raises(DescriptionError, match="0 of 1"):
        even(Description(exp_id="e", resources=(ResourceDescription(guid=1, rtype="t"), waiting)))
