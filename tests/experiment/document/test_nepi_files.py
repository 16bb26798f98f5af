"""Files that NEPI wrote are read as it meant them: of both versions, with their numbers."""

from __future__ import annotations

import re

import pytest

from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.document import DescriptionError, Net, TopologyNode, from_toml, from_xml, to_toml
from fedmon.experiment.states import ResourceAction, ResourceState

OLD = """<?xml version="1.0" encoding="UTF-8"?>
<experiment exp_id="exp-1" local_dir="/tmp" nthreads="20" run_id="20140301120000000001">
    <topology topo-type="linear">
        <nodes>
            <node nid="0" nid-type="integer" target="True">
                <node-annotations>
                    <node-annotation name="ips" type="string" value="['10.0.0.1']"/>
                    <node-annotation name="target" type="bool" value="True"/>
                </node-annotations>
            </node>
            <node nid="1" nid-type="integer"/>
        </nodes>
        <edges>
            <edge nid1="0" nid1-type="integer" nid2="1" nid2-type="integer">
                <edge-annotations>
                    <edge-annotation name="net" type="string"
 value="{0: '10.0.0.1', 1: '10.0.0.2', 'prefix': 30, 'mask': '255.255.255.252', 'network': '10.0.0.0'}"/>
                </edge-annotations>
            </edge>
        </edges>
    </topology>
    <rms>
        <rm guid="1" ready_time="20140301120001000000" rtype="LinuxNode" start_time="20140301120003000000" state="4">
            <attributes>
                <attribute name="hostname" type="string" value="host.example"/>
                <attribute name="cleanHome" type="bool" value="True"/>
                <attribute name="port" type="integer" value="22"/>
                <attribute name="gatewayUser" type="string" value="None"/>
                <attribute name="ratio" type="float" value="0.5"/>
            </attributes>
            <connections><connection guid="2"/></connections>
        </rm>
        <rm guid="2" rtype="LinuxApplication" state="0">
            <conditions>
                <condition action="1" group="[1]" state="4" time="5s"/>
                <condition action="2" group="set([1])" state="5" time="None"/>
                <condition action="0" group="(1,)" state="1" time="1.5m"/>
            </conditions>
            <traces><trace name="stdout"/></traces>
        </rm>
    </rms>
</experiment>
"""
NEW = OLD.replace('state="5"', 'state="6"').replace('state="4"', 'state="5"').replace("Linux", "linux::")


@pytest.mark.parametrize("text", [OLD, NEW], ids=["NEPI 3", "NEPI 6"])
def test_states_are_read_by_the_numbers_of_the_version_that_wrote_them(text: str) -> None:
    node, application = from_xml(text).resources

    assert node.state is ResourceState.STARTED
    assert [state for state, _ in node.times] == [ResourceState.READY, ResourceState.STARTED]
    assert node.times[1][1] - node.times[0][1] == 2.0
    assert application.conditions == (
        (
            ResourceAction.DEPLOY,
            StateCondition(number=1, group=(1,), state=ResourceState.DISCOVERED, delay_s=90.0),
        ),
        (ResourceAction.START, StateCondition(number=2, group=(1,), state=ResourceState.STARTED, delay_s=5.0)),
        (ResourceAction.STOP, StateCondition(number=3, group=(1,), state=ResourceState.STOPPED)),
    )


def test_the_rest_of_a_file_of_nepi_is_read() -> None:
    description = from_xml(OLD)
    node, application = description.resources

    assert (description.exp_id, description.nthreads, description.local_dir) == ("exp-1", None, "/tmp")
    assert node.attributes == {
        "hostname": "host.example", "cleanHome": True, "port": 22, "gatewayUser": None, "ratio": 0.5
    }  # fmt: skip
    assert (node.connections, application.connections) == ((2,), (1,))
    assert application.traces == ("stdout",)
    assert description.topology is not None
    assert description.topology.nodes[0] == TopologyNode(nid=0, is_target=True, ips=("10.0.0.1",))
    assert description.topology.edges[0].net == Net(
        ip1="10.0.0.1", ip2="10.0.0.2", mask="255.255.255.252", network="10.0.0.0", prefix=30
    )
    assert from_toml(to_toml(description)) == description


def test_the_first_files_of_nepi_3_have_their_resources_in_no_list() -> None:
    flat = OLD.replace("<rms>", "").replace("</rms>", "")

    assert from_xml(flat) == from_xml(OLD)
    assert [each.guid for each in from_xml(flat).resources] == [1, 2]


@pytest.mark.parametrize(("text", "nepi"), [(OLD, 3), (NEW, 6)])
def test_a_time_that_is_none_tells_nothing_of_the_version(text: str, nepi: int) -> None:
    given = text.replace('rtype="', 'failed_time="None" release_time="" stop_time="None" reserved_time="None" rtype="')
    given = given.replace("LinuxNode", "Any").replace("LinuxApplication", "Any").replace("linux::", "Any::")
    given = given.replace('<condition action="2"', '<condition action="1"').replace('state="6" time="None"', "")
    given = re.sub(r'<condition action="1" group="set.*', "", given)

    assert from_xml(given).resources[0].state is ResourceState.STARTED
    assert from_xml(given).resources == from_xml(given, nepi=nepi).resources


@pytest.mark.parametrize("group", ["[]", "set()", "set([])", "()", "{}", " [ ] "])
def test_a_condition_that_nepi_left_without_members_asks_for_nothing(group: str) -> None:
    text = condition_in("4").replace('group="[1]"', f'group="{group}"')

    assert from_xml(text).resources[1].conditions == ()


def condition_in(state: str, *, more: str = "") -> str:
    return (
        '<experiment exp_id="e"><rms><rm guid="1" rtype="a::b" state="0"/><rm guid="2" rtype="a::b" state="0">'
        f'<conditions><condition action="1" group="[1]" state="{state}" time="None"/>{more}</conditions></rm>'
        "</rms></experiment>"
    )


def state_in(text: str, *, nepi: int | None = None) -> ResourceState:
    (_, condition), *_ = from_xml(text, nepi=nepi).resources[1].conditions
    assert isinstance(condition, StateCondition)
    return condition.state


def test_who_knows_the_version_says_it() -> None:
    assert state_in(condition_in("4"), nepi=3) is ResourceState.STARTED
    assert state_in(condition_in("4"), nepi=6) is ResourceState.READY
    assert state_in(condition_in("STARTED"), nepi=3) is ResourceState.STARTED


def test_where_nothing_tells_the_version_it_is_the_last_one_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert state_in(condition_in("4")) is ResourceState.READY
    assert "taken as NEPI 6" in caplog.text


@pytest.mark.parametrize(("state", "nepi"), [("8", 3), ("9", 6), ("-1", 6), ("", 6), ("4.0", 6), ("GONE", 6)])
def test_a_state_that_there_is_not_is_refused_with_what_there_is(state: str, nepi: int) -> None:
    with pytest.raises(DescriptionError, match="STARTED"):
        from_xml(condition_in(state), nepi=nepi)


def test_a_version_that_there_is_not_is_refused() -> None:
    with pytest.raises(DescriptionError, match="3, 6"):
        from_xml(OLD, nepi=5)
