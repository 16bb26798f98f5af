"""Files of experiments load in both forms, say the same, and come back whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedmon.researcher.experiment import (
    ExperimentController,
    ResourceAction,
    ResourceFactory,
    ResourceState,
    populate_factory,
)
from tests.contract.opened import opened
from tests.support.shell_here import fedmon_here

FORMS = ("experiment.toml", "experiment.xml")
WAVES = (
    "deploy 1 7 9", "deploy 2 3 6", "deploy 4 5 8", "start 1 2 3 4 6 8 9", "stop 8", "start 5", "start 7",
)  # fmt: skip
TYPES = {
    "fedmon::Node": "critical hardRelease nodeId grace present agentVersion",
    "fedmon::Dataset": "critical hardRelease tags datasetId foundOn",
    "fedmon::TrainingPlan": "critical hardRelease plan description sha256 approvedBy",
    "fedmon::Job": "critical hardRelease args inputs inputsFrom limits tags atLeast jobId ranOn outcome "
    "stdout stderr result scalars",
    "fedmon::Monitor": "critical hardRelease metrics interval samples recording",
    "fedmon::Aggregator": "critical hardRelease function result",
    "fedmon::Collector": "critical hardRelease traceName subDir rename storeDir useRunId collected missing",
    "local::Process": "critical hardRelease command cwd env grace pid exitCode stdout stderr",
}
NEPI = """<experiment exp_id="exp-1" local_dir="/tmp" nthreads="20" run_id="20140301120000000001"><rms>
 <rm guid="1" rtype="Collector" state="0"><attributes><attribute name="traceName" type="string" value="stdout"/>
 <attribute name="useRunId" type="bool" value="True"/></attributes><connections><connection guid="2"/></connections>
 </rm><rm guid="2" rtype="local::Process" state="0"><attributes><attribute name="critical" type="bool" value="False"/>
 </attributes><conditions><condition action="1" group="set([1])" state="5" time="5s"/></conditions>
 <traces><trace name="stdout"/></traces></rm></rms></experiment>"""


def _said(ec: ExperimentController, form: str) -> list[str]:
    """Return an experiment without what is of one run."""
    return [line for line in ec.serialize(form).splitlines() if "run_id" not in line and "local_dir" not in line]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_before_has_all_that_it_says(form: str, tmp_path: Path) -> None:
    with ExperimentController.load(opened(form, tmp_path / "files"), local_dir=tmp_path) as ec:
        types = [ec.get_resource(guid).get_rtype() for guid in ec.resources]
        values = [ec.get(1, "grace"), ec.get(2, "tags"), ec.get(4, "args"), ec.get(6, "interval"), ec.get(8, "env")]

        assert ec.exp_id == "every-key"
        assert types == [*list(TYPES)[:4], "fedmon::Job", *list(TYPES)[4:6], "local::Process", "fedmon::Collector"]
        assert values == ["5s", ["mri", "2024"], {"columns": ["age"], "rounds": 3}, 0.5, {"LANG": "C"}]
        assert [ec.get(guid, "critical") for guid in (1, 2)] == [False, True]
        assert sorted(ec.get_resource(4).connections) == [2, 3, 6, 7, 9]


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    with (
        ExperimentController.load(opened("experiment.toml", tmp_path / "files"), local_dir=tmp_path) as toml,
        ExperimentController.load(opened("experiment.xml", tmp_path / "files"), local_dir=tmp_path) as xml,
    ):
        assert [_said(toml, form) for form in ("toml", "xml")] == [_said(xml, form) for form in ("toml", "xml")]


@pytest.mark.parametrize("saved", ["toml", "xml"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_loaded_and_saved_loads_again(form: str, saved: str, tmp_path: Path) -> None:
    with ExperimentController.load(opened(form, tmp_path / "files"), local_dir=tmp_path) as ec:
        file, before = ec.save(str(tmp_path), format=saved), _said(ec, "toml")

    with ExperimentController.load(file, local_dir=tmp_path) as again:
        assert _said(again, "toml") == before


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_planned_in_the_order_that_it_had(form: str, tmp_path: Path) -> None:
    done = fedmon_here("experiment", "check", str(opened(form, tmp_path / "files")), "--json")
    found: Any = json.loads(done.stdout)

    waves = [" ".join([wave[0]["kind"], *(str(step["guid"]) for step in wave)]) for wave in found["waves"]]

    assert (done.returncode, found["possible"], tuple(waves)) == (0, True, WAVES)


def test_a_file_of_nepi_loads(tmp_path: Path) -> None:
    (tmp_path / "nepi.xml").write_text(NEPI)

    with ExperimentController.load(tmp_path / "nepi.xml", local_dir=tmp_path) as ec:
        (condition,) = ec.get_resource(2).conditions[ResourceAction.START]

        assert (ec.get(1, "traceName"), ec.get(1, "useRunId"), ec.get(2, "critical")) == ("stdout", True, False)
        assert ec.get_resource(2).trace_enabled("stdout")
        assert condition == ([1], ResourceState.STARTED, "5s")


@pytest.mark.parametrize("rtype", TYPES)
def test_a_type_of_resource_keeps_its_attributes_and_traces(rtype: str) -> None:
    populate_factory()

    found = ResourceFactory.get_resource_type(rtype)

    held = [*(one.name for one in found.get_attributes()), *(one.name for one in found.get_traces())]
    assert [name for name in TYPES[rtype].split() if name not in held] == []
