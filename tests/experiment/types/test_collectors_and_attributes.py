"""What a Collector takes, and when; the attributes and connections of all types."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmon.experiment.attributes import TraceAttr
from fedmon.experiment.conditions import Metric
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeValueError,
    InvalidConnectionError,
    UnknownTraceError,
)
from fedmon.experiment.events import VerbBegan
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.types import register_aggregation
from fedmon.experiment.types.aggregator import MAX_ATTRIBUTE_BYTES, aggregation
from fedmon.experiment.types.collector import Collector
from tests.experiment.own_types import STARTED, added, killed_now, own, started
from tests.experiment.types.conftest import process, python
from tests.support.full_disk import files_of_at_most
from tests.support.waiting import wait_until


class Remote(ResourceManager):
    """Has traces on another machine, by paths that mean something else here."""

    _rtype = "test::Remote"

    def trace(self, name: str, attr: object = TraceAttr.ALL, block: int = 512, offset: int = 0) -> Any:  # noqa: ARG002
        if attr != TraceAttr.PATH:
            return {"stdout": b"\xff there", "stderr": "errors there"}.get(name)
        if name == "stdout":
            return "/proc/self/status"
        raise RuntimeError("no connection")


def test_a_collector_writes_each_trace_of_here_and_elsewhere_and_marks_those_that_are_missing(
    local: ExperimentController,
) -> None:
    ResourceFactory.register_type(Remote)
    good, remote, silent = (
        process(local, python("print('rows')")),
        local.register_resource("test::Remote"),
        process(local, ["true"]),
    )
    plain, _, none = (
        local.register_resource("fedmon::Collector", traceName=name, connectedTo=connected)
        for name, connected in (("stdout", [good, remote]), ("stderr", remote), ("nothing", remote))
    )
    moved = local.register_resource(
        "Collector", traceName="no-such", subDir="a/b", rename="log.txt", connectedTo=[silent]
    )
    local.deploy()
    assert local.wait_finished(good, timeout=60)

    assert local.release()

    run = Path(local.run_dir)
    assert (run / f"{good}.stdout").read_text() == "rows\n"
    assert (run / f"{remote}.stdout").read_bytes() == b"\xff there"
    assert (run / f"{remote}.stderr").read_text() == "errors there"
    assert local.get(moved, "missing").startswith(f"{silent}.no-such: ")
    assert not (run / "a" / "b" / f"{silent}.log.txt").exists()
    assert (local.get(plain, "collected"), local.get(plain, "missing")) == (f"{good}.stdout, {remote}.stdout", None)
    assert local.get(none, "missing") == f"{remote}.nothing: it was not written"


def test_a_collector_does_not_warn_of_a_resource_that_never_started(
    local: ExperimentController, caplog: pytest.LogCaptureFixture
) -> None:
    guid = process(local, ["true"])
    collector = local.register_resource("fedmon::Collector", traceName="stdout", connectedTo=guid)

    assert local.release()

    assert local.get(collector, "missing").startswith(f"{guid}.stdout: ")
    assert not caplog.records


class Link(ResourceManager):
    """Has a trace behind a connection that its release closes."""

    _rtype = "test::Link"
    _is_open = True

    def trace(self, name: str, attr: object = TraceAttr.ALL, block: int = 512, offset: int = 0) -> Any:  # noqa: ARG002
        if not self._is_open:
            raise ConnectionError("closed")
        return "rows" if attr == TraceAttr.ALL else None

    def do_release(self) -> None:
        self._is_open = False
        super().do_release()


def test_an_aggregator_that_was_started_is_not_started_anew_by_a_reconnect(local: ExperimentController) -> None:
    guid = local.register_resource("fedmon::Aggregator", connectedTo=local.register_resource("fedmon::Job"))
    aggregator = local.get_resource(guid)
    local.engine.note(VerbBegan(guid=guid, verb="start"))
    aggregator.set_state(STARTED)
    began = local.get_start_time(guid)

    aggregator.take_up("start")  # the hook of its start had not returned

    assert (local.get_start_time(guid), local.state(guid)) == (began, STARTED)
    assert local.snapshot.resources[guid].calling is None


def test_an_aggregator_that_is_released_with_its_jobs_does_not_fail(tmp_path: Path) -> None:
    for _ in range(30):  # its jobs may be released first, or last
        with ExperimentController("local", tmp_path) as ec:
            job = ec.register_resource("fedmon::Job")
            total = ec.register_resource("fedmon::Aggregator", connectedTo=job)
            collector = ec.register_resource("fedmon::Collector", traceName="result", connectedTo=[job, total])
            ec.deploy([total, collector])
            assert ec.wait_started([total, collector], timeout=60)

        assert (ec.abort, ec.snapshot.level_reason) == (False, "")


@pytest.mark.parametrize("is_source_first", [True, False])
@pytest.mark.parametrize("releases", ["all", "the source", "the source for good"])
def test_a_collector_reads_before_a_release_frees_what_the_trace_needs(
    local: ExperimentController, is_source_first: bool, releases: str
) -> None:
    ResourceFactory.register_type(Link)
    rtypes = ["test::Link"] * 5 + ["fedmon::Collector"]
    made = [local.register_resource(rtype) for rtype in (rtypes if is_source_first else rtypes[::-1])]
    collector = made[-1] if is_source_first else made[0]
    sources = [guid for guid in made if guid != collector]
    local.set(collector, "traceName", "out")
    for guid in sources:
        local.register_connection(guid, collector)
        local.set(guid, "hardRelease", releases == "the source for good")
    started(local, made)

    if releases != "all":
        assert local.release(sources)
        assert local.state(collector) is STARTED
    assert local.release()

    assert {guid: Path(local.run_dir, f"{guid}.out").read_text() for guid in sources} == dict.fromkeys(sources, "rows")
    assert local.get(collector, "missing") is None


def test_neighbours_take_what_is_written_until_the_release(local: ExperimentController) -> None:
    read = []

    def neighbour_releases(_self: ResourceManager, other: ResourceManager) -> None:
        read.append(other.trace("stdout"))

    reader = added(local, own("test::Reader", neighbour_releases=neighbour_releases)).guid
    code = "import signal, sys\ndef end(*_):\n print('last words', flush=True); sys.exit()\n"
    guid = process(local, python(f"{code}signal.signal(signal.SIGTERM, end); print('up', flush=True); signal.pause()"))
    local.register_resource("fedmon::Collector", traceName="stdout", connectedTo=guid)
    local.register_connection(guid, reader)
    local.deploy()
    wait_until(lambda: Path(local.run_dir, str(guid), "stdout").exists() and local.trace(guid, "stdout") == "up\n")

    local.shutdown()

    assert Path(local.run_dir, f"{guid}.stdout").read_text() == "up\nlast words\n"
    assert read == ["up\nlast words\n"]


def test_a_collector_lists_what_a_process_that_died_collected(local: ExperimentController) -> None:
    first, second = (process(local, ["echo", "rows"]) for _ in range(2))
    collector = local.register_resource("fedmon::Collector", traceName="stdout", connectedTo=[first, second])
    local.deploy()
    assert local.wait_finished([first, second], timeout=60)
    assert local.release(first)

    with ExperimentController.reconnect(killed_now(local)) as again:
        assert again.release()

        assert again.get(collector, "collected") == "1.stdout, 2.stdout"


def test_a_full_disk_leaves_the_copy_of_before(local: ExperimentController, caplog: pytest.LogCaptureFixture) -> None:
    guid = process(local, python("print('a' * 300_000)"))
    collector = local.register_resource("fedmon::Collector", traceName="stdout", connectedTo=guid)
    local.deploy()
    assert local.wait_finished(guid, timeout=60)
    assert local.release(collector)

    with files_of_at_most(60_000):
        assert local.release(guid)

    assert (local.get(collector, "collected"), local.get(collector, "missing")) == ("1.stdout", None)
    assert "trace stdout of" in caplog.text
    copy = Path(local.run_dir, "1.stdout")
    assert copy.read_text() == "a" * 300_000 + "\n"
    assert [each.name for each in copy.parent.glob(".*")] == []


@pytest.mark.parametrize("rtype", ["Collector", "fedmon::Collector"])
def test_a_collector_writes_where_scripts_of_nepi_3_have_it(
    local: ExperimentController, rtype: str, tmp_path: Path
) -> None:
    guid = process(local, python("print('rows')"))
    options: tuple[dict[str, Any], ...] = (
        {},
        {"useRunId": True},
        {"useRunId": True, "subDir": "a/b", "rename": "log.txt"},
    )
    collectors = [
        local.register_resource(rtype, traceName="stdout", storeDir=str(tmp_path / "store"), connectedTo=guid, **each)
        for each in options
    ]
    beside = local.register_resource(rtype, traceName="stdout", useRunId=True, subDir="own", connectedTo=guid)
    gone = local.register_resource(rtype, traceName="no-such", storeDir=str(tmp_path / "store"), connectedTo=guid)
    local.deploy()
    assert local.wait_finished(guid, timeout=60)

    assert local.release()

    of_run = tmp_path / "store" / local.run_id
    files = [tmp_path / "store" / f"{guid}.stdout", of_run / f"{guid}.stdout", of_run / "a" / "b" / f"{guid}.log.txt"]
    assert [path.read_text() for path in files] == ["rows\n"] * 3
    assert [local.get(each, "collected") for each in collectors] == [str(path) for path in files]
    made = [local.get_resource(each) for each in collectors]
    assert [each.store_path for each in made if isinstance(each, Collector)] == [str(path.parent) for path in files]
    assert local.get(beside, "collected") == f"own/{guid}.stdout"
    assert Path(local.run_dir, "own", f"{guid}.stdout").read_text() == "rows\n"
    assert local.get(gone, "missing").startswith(f"{guid}.no-such: ")


def test_a_collector_is_refused_a_folder_that_cannot_be_made(local: ExperimentController, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    guid = local.register_resource("Collector", traceName="stdout", storeDir=tmp_path / "file" / "below")
    with pytest.raises(InvalidAttributeValueError, match="the path of a folder"):
        local.set(guid, "storeDir", "~nobody-of-that-name/traces")

    local.deploy()

    assert local.wait_started(guid, timeout=60).failed == (guid,)
    assert f"cannot write {tmp_path / 'file' / 'below'}" in local.get_resource(guid).reason


def test_a_collector_without_a_trace_name_collects_nothing_and_is_refused_a_path_that_leads_away(
    local: ExperimentController, caplog: pytest.LogCaptureFixture
) -> None:
    guid = local.register_resource("fedmon::Collector", connectedTo=process(local, ["true"]))
    assert local.release(local.register_resource("fedmon::Collector", connectedTo=1))
    assert caplog.text == ""
    for wrong in ("../up", "/etc/passwd", "a/../../b", ""):
        with pytest.raises(InvalidAttributeValueError):
            local.set(guid, "subDir", wrong)
    with pytest.raises(InvalidAttributeValueError, match="parts of a path"):
        local.set(guid, "rename", "a/b")

    local.set(guid, "traceName", "stdout")
    started(local, guid)


# --- types ------------------------------------------------------------------------------------------------------------


def test_types_refuse_what_they_cannot_be_connected_to(local: ExperimentController) -> None:
    job, monitor = local.register_resource("fedmon::Job"), local.register_resource("fedmon::Monitor")
    plans = [local.register_resource("fedmon::TrainingPlan") for _ in range(2)]
    command = process(local, ["true"])
    local.register_connection(job, plans[0])

    for one, other in ((job, plans[1]), (job, command), (monitor, command)):
        with pytest.raises(InvalidConnectionError):
            local.register_connection(one, other)

    assert local.get_resource(job).connections == {plans[0]}
    assert local.get_resource(command).connections == frozenset()
    assert local.get_resource(job).valid_connection(plans[0])  # a dry run asks again of what is connected
    local.register_connection(job, plans[0])


@pytest.mark.parametrize(
    ("rtype", "name", "value"),
    [
        ("fedmon::Node", "nodeId", "a/b"), ("fedmon::Node", "nodeId", "nodes"), ("fedmon::Node", "grace", "soon"),
        ("fedmon::Dataset", "tags", []), ("fedmon::Dataset", "tags", [1]), ("fedmon::TrainingPlan", "plan", 7),
        ("fedmon::Job", "args", "[1]"), ("fedmon::Job", "args", {"x": float("nan")}), ("fedmon::Job", "args", "{"),
        ("fedmon::Job", "args", {"x": object()}), ("fedmon::Job", "limits", {"walls": 3}),
        ("fedmon::Job", "inputs", "model.pkl"), ("fedmon::Job", "args", "[" * 100_000), ("fedmon::Job", "jobId", "x"),
        ("fedmon::Monitor", "metrics", "host_memory_used_byte"), ("fedmon::Monitor", "interval", 0),
        ("fedmon::Monitor", "interval", "1s"), ("fedmon::Monitor", "metrics", 3),
        ("fedmon::Aggregator", "function", "os:system"), ("fedmon::Aggregator", "function", 7),
        ("fedmon::Dataset", "tags", "a,,b"), ("local::Process", "env", {"A=B": "x"}),
        ("local::Process", "env", {"A": 1}), ("local::Process", "cwd", 3), ("local::Process", "pid", 1),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_when_they_are_set(
    local: ExperimentController, rtype: str, name: str, value: object
) -> None:
    guid = local.register_resource(rtype)

    with pytest.raises((InvalidAttributeValueError, AttributeAccessError), match=name):
        local.set(guid, name, value)

    assert local.get(guid, name) == local.get_attribute(guid, name).default


def test_a_mistyped_metric_is_refused_with_the_name_that_is_near(local: ExperimentController) -> None:
    with pytest.raises(
        InvalidAttributeValueError, match=r"unknown metric 'gpu_power_wats'; did you mean 'gpu_power_watts'"
    ):
        local.register_resource("fedmon::Monitor", metrics=["host_*", 'gpu_power_wats{gpu="0"}'])

    own = local.register_resource("fedmon::Monitor", metrics=["sample_temperature", "host_memory_*", "gpu_power_watts"])

    assert local.get(own, "metrics") == ["sample_temperature", "host_memory_*", "gpu_power_watts"]


def test_functions_of_the_same_name_are_told_apart(local: ExperimentController) -> None:
    functions = [lambda results, number=number: {"number": number, "nodes": len(results)} for number in (1, 2)]

    guids = [local.register_resource("fedmon::Aggregator", function=each) for each in (*functions, functions[0])]

    names = [local.get(guid, "function") for guid in guids]
    assert names[0] == names[2] != names[1]
    assert [aggregation(name)({})["number"] for name in names] == [1, 2, 1]
    register_aggregation(len, "count")
    local.set(guids[0], "function", "count")
    found = {"a": {"x": 1}, "b": {}}
    assert (aggregation("count")(found), aggregation("collect")(found)) == (2, found)


@pytest.mark.parametrize("name", ["sum", "mean", "weighted-mean"])
def test_aggregates_of_small_integers_do_not_wrap_around(name: str) -> None:
    pairs = {"u1": (200, 100), "i2": (-30_000, -10_000), "i4": (2**31 - 1, 2**31 - 3)}
    a, b = ({dtype: np.array([pair[of]], dtype) for dtype, pair in pairs.items()} for of in (0, 1))

    found = aggregation(name)({"a": {"rows": 300, **a}, "b": {"rows": 300, **b}})

    by = 1 if name == "sum" else 2
    assert {dtype: found[dtype].tolist() for dtype in pairs} == {each: [sum(pairs[each]) / by] for each in pairs}


def test_numbers_of_numpy_reach_conditions(local: ExperimentController) -> None:
    job, after = local.register_resource("fedmon::Job"), process(local, ["true"])
    large = {"rows": np.int64(7), "text": "x" * MAX_ATTRIBUTE_BYTES}
    total = local.register_resource("fedmon::Aggregator", function=lambda _: large, connectedTo=job)
    local.register_condition(after, "START", total, metric=Metric(name="rows", comparison=">", value=5))
    local.get_resource(job).set_stopped()

    local.deploy([total, after])

    assert local.wait_finished([total, after], timeout=60), local.explain(after)
    assert json.loads(local.get(total, "result")) == {"names": ["rows", "text"]}
    assert json.loads(str(local.trace(total, "result")))["text"] == large["text"]


def test_a_node_without_rows_has_no_weight() -> None:
    empty = {"rows": 0, "mean": math.nan, "spread": None}

    assert aggregation("weighted-mean")({"a": empty, "b": {"rows": 3, "mean": 2.0, "spread": 1.0}}) == {
        "rows": 3, "mean": 2.0, "spread": 1.0
    }  # fmt: skip
    for rows in (None, -1, True):
        with pytest.raises(ValueError, match="a returned no number of rows"):
            aggregation("weighted-mean")({"a": {"rows": rows}})


@pytest.mark.parametrize("name", ["sum", "mean", "weighted-mean"])
def test_arrays_of_different_shapes_are_not_stretched(name: str) -> None:
    values = {node: {"rows": 1, "counts": np.ones(size)} for node, size in (("a", 3), ("b", 1))}

    with pytest.raises(ValueError, match=r"counts has different shapes: .*'a': \(3,\), 'b': \(1,\)"):
        aggregation(name)(values)


def test_json_attributes_are_kept_as_documents_hold_them(local: ExperimentController) -> None:
    guid = local.register_resource("fedmon::Job", args='{"rounds": 3}', inputs={"w": [1.5]}, limits={"wall_s": 5})

    assert (local.get(guid, "args"), local.get(guid, "inputs")) == ({"rounds": 3}, {"w": [1.5]})
    with pytest.raises(UnknownTraceError):
        local.trace(guid, "stdin")
