"""Experiments as a whole: saved and loaded, planned before they run, explained while they do, drawn, and repeated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.experiment import (
    ExperimentController,
    Metric,
    ResourceAction,
    ResourceFactory,
    ResourceManager,
    ResourceState,
    Retry,
    SFormats,
    clsinit_copy,
)
from fedmon.experiment.check.problems import ImpossiblePlanError, Problem
from fedmon.experiment.document import even, read
from fedmon.experiment.errors import UnknownTypeError
from tests.experiment.taken_up import use_types
from tests.support.waiting import wait_until

START, STARTED, STOPPED = ResourceAction.START, ResourceState.STARTED, ResourceState.STOPPED


@pytest.fixture(autouse=True)
def types() -> None:
    use_types()


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    with ExperimentController("trial", tmp_path / "runs") as made:
        yield made


def furnished(ec: ExperimentController, folder: Path) -> list[int]:
    first = ec.register_resource(
        "test::Sent", ledger=str(folder / "ledger"), token="secret", retry={"deploy": Retry(times=2)}
    )
    second = ec.register_resource("test::Sent", ledger=str(folder / "ledger"), timeouts={"start": 9.0})
    third = ec.register_resource("test::Open")
    ec.register_connection(first, third)
    ec.register_condition(second, START, first, STOPPED, time="10ms")
    ec.register_condition(third, START, [first, second], STOPPED, at_least=1, timeout="20s")
    ec.set_with_conditions("note", "seen", second, first, STOPPED)
    ec.enable_trace(first, "log")
    return [first, second, third]


@pytest.mark.parametrize("kind", list(SFormats))
def test_what_is_saved_is_loaded_and_runs(ec: ExperimentController, tmp_path: Path, kind: SFormats) -> None:
    furnished(ec, tmp_path)
    path = ec.save(tmp_path, kind)
    assert Path(path).name.startswith("trial_20")
    assert "secret" not in Path(path).read_text()

    with ExperimentController.load(path) as again:
        assert again.run_id != ec.run_id
        assert again.trace_enabled(1, "log")
        kept, theirs = even(again.describe()).resources, even(ec.describe()).resources
        assert [each.sets for each in kept] == [each.sets for each in theirs]
        assert [each.conditions for each in kept] == [each.conditions for each in theirs]
        assert kept[0].retry == theirs[0].retry
        assert kept[1].timeouts == {"start": 9.0}
        again.deploy()
        assert again.wait_finished([1, 2], timeout=10)
        assert again.wait_started(3, timeout=10)
        wait_until(lambda: again.get(2, "note") == "seen")


def test_a_document_with_an_unknown_type_leaves_nothing_running(ec: ExperimentController, tmp_path: Path) -> None:
    furnished(ec, tmp_path)
    path = Path(ec.save(tmp_path))
    path.write_text(path.read_text().replace("test::Open", "test::Opened"))

    with pytest.raises(UnknownTypeError, match="test::Opened"):
        ExperimentController.load(path)


def test_an_experiment_is_saved_at_its_release_where_that_was_asked_for(tmp_path: Path) -> None:
    with ExperimentController("trial", tmp_path, persist=True) as ec:
        furnished(ec, tmp_path)
        ec.deploy()
        ec.wait_finished([1, 2], timeout=10)
        run_dir = Path(ec.run_dir)

    (saved,) = run_dir.glob("trial_*.xml")
    assert read(saved).resources[0].state is ResourceState.RELEASED


def test_a_circle_is_refused_at_deployment_and_named_in_the_plan(ec: ExperimentController, tmp_path: Path) -> None:
    one, two = (ec.register_resource("test::Open") for _ in range(2))
    ec.register_condition(one, START, two, STARTED)
    ec.register_condition(two, START, one, STARTED)

    with pytest.raises(ImpossiblePlanError, match=r"1 .*2|2 .*1"):
        ec.deploy()

    assert not ec.plan().is_possible
    assert ec.state(one) is ResourceState.NEW
    ec.unregister_condition(two, one)
    ec.deploy()
    assert ec.wait_started([one, two], timeout=10)


def test_what_resources_foresee_is_in_the_plan(ec: ExperimentController) -> None:
    @clsinit_copy
    class Wary(ResourceManager):
        _rtype = "test::Wary"
        waits_for = "better weather"

        def foreseen(self) -> list[Problem]:
            if self.guid == 2:
                raise StorageError("the barometer is broken")
            return [Problem(kind="missing-dataset", guids=(self.guid,), text="it will rain")]

    ResourceFactory.register_type(Wary)
    ec.register_resource("test::Wary")
    ec.register_resource("test::Wary")

    found = ec.plan()

    assert [str(problem.text) for problem in found.errors] == ["it will rain"]
    assert ["barometer" in problem.text for problem in found.warnings] == [True]
    assert str(ec.explain(1)).endswith("it waits for better weather")


def test_what_holds_a_resource_up_is_explained(ec: ExperimentController) -> None:
    one, two, three = (ec.register_resource("test::Open") for _ in range(3))
    ec.register_condition(one, START, two, STARTED, timeout="1h")
    ec.register_condition(two, START, three, metric=Metric(name="accuracy", comparison=">", value=0.9))
    ec.deploy()
    assert ec.wait_deployed([one, two, three], timeout=10)

    found = ec.explain(one)

    assert found.waits_for == (two,)
    assert found.chain == (one, two, three)
    assert "accuracy > 0.9" in str(ec.explain(two))
    assert found.waiting[0].gives_up_in_s is not None
    assert 3500 < found.waiting[0].gives_up_in_s <= 3600


def test_an_experiment_is_drawn_with_its_conditions(ec: ExperimentController, tmp_path: Path) -> None:
    furnished(ec, tmp_path)

    png, dot = Path(ec.plot(tmp_path)), Path(ec.plot(tmp_path, "dot"))

    assert png.read_bytes().startswith(b"\x89PNG")
    assert "->" in dot.read_text()
    assert "STOPPED" in dot.read_text()


def test_an_experiment_is_made_from_a_topology(tmp_path: Path) -> None:
    def add_node(ec: ExperimentController, nid: object) -> None:
        assert ec.netgraph is not None
        ec.netgraph.annotate_node(nid, "guid", ec.register_resource("test::Open"))  # type: ignore[arg-type] # a number

    def add_edge(ec: ExperimentController, one: object, other: object) -> None:
        assert ec.netgraph is not None
        guids = [ec.netgraph.node_annotation(nid, "guid") for nid in (one, other)]  # type: ignore[arg-type] # numbers
        ec.register_connection(*guids)

    with ExperimentController(
        "trial", tmp_path, add_node_callback=add_node, add_edge_callback=add_edge,
        topo_type="star", node_count=7, branches=3, assign_ips=True, assign_st=True,
    ) as ec:  # fmt: skip
        assert len(ec.resources) == 7
        path = ec.save(tmp_path)
        assert ec.netgraph is not None
        edges = ec.netgraph.edges()
    with ExperimentController.load(path) as again:
        assert again.netgraph is not None
        assert again.netgraph.edges() == edges
        assert len(again.resources) == 7


def test_importing_experiments_loads_nothing_heavy() -> None:
    code = (
        "import sys, fedmon.experiment as e; e.ExperimentController; "
        "heavy = ('matplotlib', 'networkx', 'numpy', 'pandas', 'paho', 'typer', 'requests'); "
        "print([name for name in heavy if name in sys.modules])"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (said.stdout, said.stderr) == ("[]\n", "")
