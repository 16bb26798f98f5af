"""NEPI's files are read as it meant them; nothing in XML is evaluated, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.compat.nepi.xml_files import from_xml
from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.document.description import Net, TopologyNode
from fedmon.experiment.document.files import from_toml, to_toml
from fedmon.experiment.errors import DescriptionError
from fedmon.experiment.states import ResourceAction, ResourceState

NEPI = """<?xml version="1.0" encoding="UTF-8"?>
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
        <rm guid="1" ready_time="20140301120001000000" rtype="linux::Node" start_time="20140301120003000000"
            failed_time="None" state="5">
            <attributes>
                <attribute name="hostname" type="string" value="host.example"/>
                <attribute name="cleanHome" type="bool" value="True"/>
                <attribute name="port" type="integer" value="22L"/>
                <attribute name="gatewayUser" type="string" value="None"/>
                <attribute name="ratio" type="double" value="0.5"/>
            </attributes>
            <connections><connection guid="2"/></connections>
        </rm>
        <rm guid="2" rtype="linux::Application" state="0">
            <conditions>
                <condition action="1" group="[1L]" state="5" time="5s"/>
                <condition action="2" group="set([1])" state="6" time="None"/>
                <condition action="0" group="(1,)" state="1" time="1.5m"/>
                <condition action="1" group="set([])" state="5"/>
            </conditions>
            <traces><trace name="stdout"/></traces>
        </rm>
    </rms>
</experiment>
"""


def test_a_file_of_nepi_is_read_with_all_that_it_says() -> None:
    description = from_xml(NEPI)
    node, application = description.resources

    # NEPI writes 20 threads even if the script did not ask for any.
    assert (description.exp_id, description.max_running, description.local_dir) == ("exp-1", None, "/tmp")
    values = {"hostname": "host.example", "cleanHome": True, "port": 22, "gatewayUser": None, "ratio": 0.5}
    assert node.attributes == values
    assert (node.connections, application.connections) == ((2,), (1,))
    assert application.traces == ("stdout",)
    assert (node.state, node.times) == (ResourceState.NEW, ())
    assert application.conditions == (
        (ResourceAction.DEPLOY, StateCondition(number=1, group=(1,), state=ResourceState.DISCOVERED, delay_s=90.0)),
        (ResourceAction.START, StateCondition(number=2, group=(1,), state=ResourceState.STARTED, delay_s=5.0)),
        (ResourceAction.STOP, StateCondition(number=3, group=(1,), state=ResourceState.STOPPED)),
    )
    assert from_toml(to_toml(description)) == description


def test_the_topology_of_nepi_is_read_with_its_addresses() -> None:
    topology = from_xml(NEPI).topology

    assert topology is not None
    assert topology.nodes[0] == TopologyNode(nid=0, is_target=True, ips=("10.0.0.1",))
    net = Net(ip1="10.0.0.1", ip2="10.0.0.2", mask="255.255.255.252", network="10.0.0.0", prefix=30)
    assert topology.edges[0].net == net


@pytest.mark.parametrize("group", ["[]", "set()", "set([])", "()", "{}", " [ ] "])
def test_a_condition_that_nepi_left_without_members_asks_for_nothing(group: str) -> None:
    assert from_xml(NEPI.replace("set([1])", group)).resources[1].conditions[-1][0] is ResourceAction.START


@pytest.mark.parametrize(("state", "expected"), [("4", "READY"), ("8", "RELEASED"), ("STARTED", "STARTED")])
def test_states_are_read_by_name_or_by_the_numbers_of_nepi_6(state: str, expected: str) -> None:
    ((_, found),) = from_xml(rm(condition(state=state))).resources[0].conditions

    assert isinstance(found, StateCondition)
    assert found.state.name == expected


@pytest.mark.parametrize("state", ["9", "-1", "4.0", "GONE"])
def test_an_unknown_state_is_refused(state: str) -> None:
    with pytest.raises(DescriptionError, match="RELEASED"):
        from_xml(rm(condition(state=state)))


BOMB = (
    '<!DOCTYPE e [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + ']><experiment exp_id="&j;"/>'
)
EXTERNAL = '<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]><experiment exp_id="&x;"/>'


@pytest.mark.parametrize("text", [BOMB, '<!DOCTYPE experiment><experiment exp_id="e"/>', EXTERNAL])
def test_declarations_are_refused(text: str) -> None:
    with pytest.raises(DescriptionError, match="document type or entities"):
        from_xml(text)


@pytest.mark.parametrize(
    "text", ["", "no", "<experiment", "<experiment></rms>", "<a/>", "<experiment/>", b"\xff\xfe", "\x00",
             b'<?xml version="1.0" encoding="no-such"?><experiment exp_id="e"/>', "<experiment exp_id='e'/><b/>",
             '<experiment exp_id="e" fedmon="2"/>', "<experiment>" * 100_000,
             "<experiment>" * 100_000 + "</experiment>" * 100_000]
)  # fmt: skip
def test_xml_without_an_experiment_is_refused(text: str | bytes) -> None:
    with pytest.raises(DescriptionError):
        from_xml(text)


def rm(inside: str = "", given: str = "") -> str:
    return (
        f'<experiment exp_id="e"><rms><rm guid="1" rtype="t" {given}>{inside}</rm><rm guid="2" rtype="t"/></rms>'
        "</experiment>"
    )


def condition(**attributes: str) -> str:
    about = {"action": "1", "group": "[2]", "state": "5"} | attributes
    written = " ".join(f'{name}="{value}"' for name, value in about.items() if value)
    return f"<conditions><condition {written}/></conditions>"


CODE = "__import__('os').mkdir('harm')"


@pytest.mark.parametrize(
    "inside",
    [
        *(condition(**{name: CODE}) for name in ("action", "group", "state", "time")),
        condition(group=f"[{CODE}]"),
        *(
            f'<attributes><attribute name="a" value="{CODE}" type="{kind}"/></attributes>'
            for kind in ("integer", "bool")
        ),
        f'<connections><connection guid="{CODE}"/></connections>',
    ],
)
def test_code_in_place_of_a_value_is_refused_and_not_run(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DescriptionError, match="resource 1"):
        from_xml(rm(inside))

    assert list(tmp_path.iterdir()) == []


def test_code_in_a_topology_is_refused_and_code_in_a_text_stays_text() -> None:
    for address in (f"[{CODE}]", "[" * 5000):
        with pytest.raises(DescriptionError, match="node 0"):
            from_xml(NEPI.replace("['10.0.0.1']", address))
    text = from_xml(rm(f'<attributes><attribute name="a" value="{CODE}" type="string"/></attributes>'))

    assert text.resources[0].attributes == {"a": CODE}


@pytest.mark.parametrize(
    ("inside", "given"),
    [
        ('<attributes><attribute name="a"/></attributes>', ""),
        ('<attributes><attribute name="a" value="x"/><attribute name="a" value="y"/></attributes>', ""),
        ("", 'name="no good"'),
        (condition(time="2 weeks"), ""),
        (condition(group=""), ""),
        (condition(group="[1 2]"), ""),
        (condition(state="", metric="m", comparison="~", value="1"), ""),
        (condition(state="", metric="m", comparison="&gt;", value="nan"), ""),
        (condition(at_least="2"), ""),
        ('<policies><retry verb="dance" times="1"/></policies>', ""),
    ],
)
def test_a_fault_in_a_resource_is_named_with_its_place(inside: str, given: str) -> None:
    place = "resource 1: start condition 1" if "<condition " in inside else r"resource (1|name)"
    with pytest.raises(DescriptionError, match=place):
        from_xml(rm(inside, given))
