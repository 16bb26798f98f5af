"""Commands on this machine as resources, and what a Collector takes from them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedmon.experiment.check.problems import ImpossiblePlanError
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeValueError,
    InvalidConnectionError,
    UnknownTraceError,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import NAME
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.states import ECState, ResourceAction, ResourceState
from fedmon.experiment.traces import TraceAttr
from fedmon.experiment.types.aggregations import aggregation
from fedmon.experiment.types.collector import Collector
from tests.support.requirements import require
from tests.support.waiting import wait_until

STOPPED, FAILED, RELEASED = ResourceState.STOPPED, ResourceState.FAILED, ResourceState.RELEASED
SLEEPER = "import signal, sys, time; {}print('up', flush=True); signal.pause()"
STUBBORN = SLEEPER.format("signal.signal(signal.SIGTERM, signal.SIG_IGN); ")


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    with ExperimentController("local", tmp_path) as made:
        yield made


def process(ec: ExperimentController, words: object, **attributes: Any) -> int:
    return ec.register_resource("local::Process", command=words, **attributes)


def reason(ec: ExperimentController, guid: int) -> str:
    return ec.snapshot.resources[guid].reason


def test_a_folder_is_that_of_the_moment_when_it_was_deployed(
    ec: ExperimentController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    guid, hold = process(ec, python("import os; print(os.getcwd())"), cwd="work"), process(ec, ["true"])
    ec.register_condition(guid, ResourceAction.START, hold, STOPPED)
    ec.deploy(guid, wait_all_ready=False)
    wait_until(lambda: ec.state(guid) is ResourceState.READY)
    monkeypatch.chdir("/")
    ec.deploy(hold)

    assert ec.wait_finished(guid, timeout=10)
    assert ec.trace(guid, "stdout") == f"{tmp_path / 'work'}\n"
    assert ec.get(guid, "cwd") == str(tmp_path / "work")


def test_an_end_comes_to_the_experiment_though_the_disk_is_full(ec: ExperimentController) -> None:
    require(Path("/dev/full").exists(), "no /dev/full")
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print('up', flush=True)"
    guid = process(ec, python(f"{code}; signal.pause()"))
    ec.deploy()
    assert ec.wait_started(guid, timeout=10)
    wait_until(lambda: ec.trace(guid, "stdout") == "up\n")
    journal = str(Path(ec.run_dir, NAME))
    (mine,) = (
        int(each.name) for each in Path("/proc/self/fd").iterdir() if each.is_symlink() and link(each) == journal
    )
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), mine)

    os.kill(ec.get(guid, "pid"), signal.SIGTERM)

    wait_until(lambda: ec.state(guid) is STOPPED)
    assert (ec.get(guid, "exitCode"), ec.ecstate) == (0, ECState.FAILED)


def link(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:  # it was closed just now
        return ""


def test_a_command_runs_with_its_words_folder_and_variables(ec: ExperimentController, tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['GREETING'], os.getcwd()); print('oops', file=sys.stderr)"
    guid = process(ec, python(code, "$HOME; ls", "*"), cwd=tmp_path, env={"GREETING": "hi"})

    ec.deploy()

    assert ec.wait_finished(guid, timeout=10)
    assert ec.state(guid) is STOPPED
    assert ec.trace(guid, "stdout") == f"['$HOME; ls', '*'] hi {tmp_path}\n"
    assert (ec.trace(guid, "stderr"), ec.trace(guid, "stderr", TraceAttr.SIZE)) == ("oops\n", 5)
    assert ec.get(guid, "exitCode") == 0
    with pytest.raises(AttributeAccessError):
        ec.set(guid, "exitCode", 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (python("import sys; print('no rows', file=sys.stderr); sys.exit(3)"), "exit code 3: no rows"),
        (python("import os; os.kill(os.getpid(), 9)"), "signal SIGKILL"),
        (["/no/such/program"], "cannot run /no/such/program in .*No such file"),
    ],
)
def test_a_command_that_fails_says_how(ec: ExperimentController, words: object, said: str) -> None:
    guid = process(ec, words)
    ec.deploy()

    ec.wait([guid], FAILED, timeout=10)

    assert ec.state(guid) is FAILED
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(reason(ec, guid))


def test_no_text_is_taken_for_a_command(ec: ExperimentController) -> None:
    for wrong in ("ls -l", [], ["a\0b"], [1], ""):
        with pytest.raises(InvalidAttributeValueError, match="command"):
            process(ec, wrong)

    assert ec.get(process(ec, '["ls", "-l"]'), "command") == ["ls", "-l"]


def test_a_stop_ends_the_whole_group_and_kills_what_does_not_hear(ec: ExperimentController) -> None:
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); " + SLEEPER.format("")
    polite, stubborn = process(ec, python(child)), process(ec, python(STUBBORN), grace="50ms")
    ec.deploy()
    for guid, lines in ((polite, 2), (stubborn, 1)):
        assert ec.wait_started(guid, timeout=10)
        wait_until(lambda guid=guid, lines=lines: str(ec.trace(guid, "stdout")).count("up") == lines)  # type: ignore[misc]
    group = [psutil.Process(ec.get(polite, "pid")), *psutil.Process(ec.get(polite, "pid")).children()]

    ec.stop(polite)
    ec.stop(stubborn)

    assert ec.wait_finished([polite, stubborn], timeout=10)
    assert {ec.state(guid) for guid in (polite, stubborn)} == {STOPPED}
    assert (ec.get(polite, "exitCode"), ec.get(stubborn, "exitCode")) == (-signal.SIGTERM, -signal.SIGKILL)
    assert len(group) == 2
    wait_until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in group))


def test_a_release_ends_what_runs_and_a_process_may_start_again(ec: ExperimentController) -> None:
    guid = process(ec, python(SLEEPER.format("")))
    ec.deploy()
    assert ec.wait_started(guid, timeout=10)
    ec.stop(guid)
    assert ec.wait_finished(guid, timeout=10)
    ec.start(guid)
    assert ec.state(guid) is ResourceState.STARTED
    pid = ec.get(guid, "pid")

    ec.shutdown()

    assert ec.state(guid) is RELEASED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_starts_when_another_ended(ec: ExperimentController) -> None:
    first, second = process(ec, python("print('one')")), process(ec, python("print('two')"))
    ec.register_condition(second, ResourceAction.START, first, STOPPED)

    ec.deploy()

    assert ec.wait_finished([first, second], timeout=10)
    begun, ended = ec.get_start_time(second), ec.get_stop_time(first)
    assert begun is not None
    assert ended is not None
    assert begun >= ended


# --- what is collected ------------------------------------------------------------------------------------------------


@clsinit_copy
class Teller(ResourceManager):
    """Has a trace that is no file, and one that is never written."""

    _rtype = "test::Teller"

    def trace(self, name: str, attr: object = TraceAttr.ALL, block: int = 512, offset: int = 0) -> str | int | None:  # noqa: ARG002
        return "a tale" if name == "stdout" and attr == TraceAttr.ALL else None


def test_a_collector_writes_what_there_is_and_marks_what_there_is_not(ec: ExperimentController) -> None:
    ResourceFactory.register_type(Teller)
    good, teller, silent = (
        process(ec, python("print('rows')")),
        ec.register_resource("test::Teller"),
        process(ec, ["true"]),
    )
    plain = ec.register_resource("fedmon::Collector", traceName="stdout", connectedTo=[good, teller])
    moved = ec.register_resource("Collector", traceName="no-such", subDir="a/b", rename="log.txt", connectedTo=[silent])
    ec.deploy()
    assert ec.wait_finished(good, timeout=10)

    assert ec.release()

    run = Path(ec.run_dir)
    assert (run / f"{good}.stdout").read_text() == "rows\n"
    assert (run / f"{teller}.stdout").read_text() == "a tale"
    mark = run / "a" / "b" / f"{silent}.log.txt.missing"
    assert "no-such" in mark.read_text()
    assert ec.get(moved, "missing").startswith(f"{silent}.no-such: ")
    assert not mark.with_suffix("").exists()
    assert ec.get(plain, "collected") == f"{good}.stdout, {teller}.stdout"
    assert ec.get(plain, "missing") is None


@clsinit_copy
class Remote(ResourceManager):
    """Has traces on another machine, by paths that mean something else here."""

    _rtype = "test::Remote"

    def trace(self, name: str, attr: object = TraceAttr.ALL, block: int = 512, offset: int = 0) -> Any:  # noqa: ARG002
        if attr != TraceAttr.PATH:
            return b"\xff there" if name == "stdout" else "errors there"
        if name == "stdout":
            return "/proc/self/status"
        raise RuntimeError("no connection")


def test_a_collector_takes_no_file_of_this_machine_for_one_of_another(ec: ExperimentController) -> None:
    ResourceFactory.register_type(Remote)
    remote = ec.register_resource("test::Remote")
    for name in ("stdout", "stderr"):
        ec.register_resource("fedmon::Collector", traceName=name, connectedTo=remote)
    ec.deploy()
    assert ec.wait_started(remote, timeout=10)

    assert ec.release()

    assert Path(ec.run_dir, f"{remote}.stdout").read_bytes() == b"\xff there"
    assert Path(ec.run_dir, f"{remote}.stderr").read_text() == "errors there"


def test_a_collector_takes_what_is_written_until_the_release(ec: ExperimentController) -> None:
    code = "import signal, sys\ndef end(*_):\n print('last words', flush=True); sys.exit()\n"
    guid = process(ec, python(f"{code}signal.signal(signal.SIGTERM, end); print('up', flush=True); signal.pause()"))
    ec.register_resource("fedmon::Collector", traceName="stdout", connectedTo=guid)
    ec.deploy()
    wait_until(lambda: Path(ec.run_dir, str(guid), "stdout").exists() and ec.trace(guid, "stdout") == "up\n")

    ec.shutdown()

    assert Path(ec.run_dir, f"{guid}.stdout").read_text() == "up\nlast words\n"


@pytest.mark.parametrize("rtype", ["Collector", "fedmon::Collector"])
def test_a_collector_writes_where_scripts_of_nepi_3_have_it(
    ec: ExperimentController, rtype: str, tmp_path: Path
) -> None:
    guid = process(ec, python("print('rows')"))
    options: tuple[dict[str, Any], ...] = (
        {},
        {"useRunId": True},
        {"useRunId": True, "subDir": "a/b", "rename": "log.txt"},
    )
    collectors = [
        ec.register_resource(rtype, traceName="stdout", storeDir=str(tmp_path / "store"), connectedTo=guid, **each)
        for each in options
    ]
    beside = ec.register_resource(rtype, traceName="stdout", useRunId=True, subDir="own", connectedTo=guid)
    gone = ec.register_resource(rtype, traceName="no-such", storeDir=str(tmp_path / "store"), connectedTo=guid)
    ec.deploy()
    assert ec.wait_finished(guid, timeout=10)

    assert ec.release()

    of_run = tmp_path / "store" / ec.run_id
    files = [tmp_path / "store" / f"{guid}.stdout", of_run / f"{guid}.stdout", of_run / "a" / "b" / f"{guid}.log.txt"]
    assert [path.read_text() for path in files] == ["rows\n"] * 3
    assert [ec.get(each, "collected") for each in collectors] == [str(path) for path in files]
    made = [ec.get_resource(each) for each in collectors]
    assert [each.store_path for each in made if isinstance(each, Collector)] == [str(path.parent) for path in files]
    assert ec.get(beside, "collected") == f"own/{guid}.stdout"
    assert Path(ec.run_dir, "own", f"{guid}.stdout").read_text() == "rows\n"
    assert ec.get(gone, "missing").startswith(f"{guid}.no-such: ")
    assert "no-such" in (tmp_path / "store" / f"{guid}.no-such.missing").read_text()


def test_a_collector_is_refused_a_folder_that_cannot_be_made(ec: ExperimentController, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    guid = ec.register_resource("Collector", traceName="stdout", storeDir=tmp_path / "file" / "below")
    with pytest.raises(InvalidAttributeValueError, match="the path of a folder"):
        ec.set(guid, "storeDir", "~nobody-of-that-name/traces")

    ec.deploy()

    assert ec.wait_started(guid, timeout=10).failed == (guid,)
    assert f"cannot make the folder {tmp_path / 'file' / 'below'}" in reason(ec, guid)


def test_a_collector_without_a_trace_name_is_refused(ec: ExperimentController) -> None:
    guid = ec.register_resource("fedmon::Collector", connectedTo=process(ec, ["true"]))
    for wrong in ("../up", "/etc/passwd", "a/../../b", ""):
        with pytest.raises(InvalidAttributeValueError):
            ec.set(guid, "subDir", wrong)
    with pytest.raises(InvalidAttributeValueError, match="parts of a path"):
        ec.set(guid, "rename", "a/b")

    with pytest.raises(ImpossiblePlanError, match="has no traceName"):
        ec.deploy()

    assert ec.state(guid) is ResourceState.NEW
    ec.set(guid, "traceName", "stdout")
    ec.deploy()
    assert ec.wait_started(guid, timeout=10)


# --- types ------------------------------------------------------------------------------------------------------------


def test_every_type_is_found_has_help_and_the_two_base_attributes() -> None:
    found = ResourceFactory.get_resource_types()

    names = ("Node", "Dataset", "TrainingPlan", "Job", "Monitor", "Collector", "Aggregator")
    for rtype in [*(f"fedmon::{name}" for name in names), "local::Process", "Collector"]:
        rclass = found[rtype]
        assert rclass.get_help()
        assert all(attribute.help for attribute in rclass.get_attributes())
        assert all(trace.help for trace in rclass.get_traces())
        assert {"critical", "hardRelease"} <= {attribute.name for attribute in rclass.get_attributes()}


def test_types_refuse_what_they_cannot_be_connected_to(ec: ExperimentController) -> None:
    job, monitor = ec.register_resource("fedmon::Job"), ec.register_resource("fedmon::Monitor")
    plans = [ec.register_resource("fedmon::TrainingPlan") for _ in range(2)]
    command = process(ec, ["true"])
    ec.register_connection(job, plans[0])

    for one, other in ((job, plans[1]), (job, command), (monitor, command)):
        with pytest.raises(InvalidConnectionError):
            ec.register_connection(one, other)

    assert ec.get_resource(job).connections == {plans[0]}
    assert ec.get_resource(command).connections == frozenset()
    assert ec.get_resource(job).valid_connection(plans[0])  # a dry run asks again of what is connected
    ec.register_connection(job, plans[0])


@pytest.mark.parametrize(
    ("rtype", "name", "value"),
    [
        ("fedmon::Node", "nodeId", "a/b"), ("fedmon::Node", "nodeId", "nodes"), ("fedmon::Node", "grace", "soon"),
        ("fedmon::Dataset", "tags", []), ("fedmon::Dataset", "tags", [1]), ("fedmon::TrainingPlan", "plan", 7),
        ("fedmon::Job", "args", "[1]"), ("fedmon::Job", "args", {"x": float("nan")}), ("fedmon::Job", "args", "{"),
        ("fedmon::Job", "args", {"x": object()}), ("fedmon::Job", "limits", {"walls": 3}),
        ("fedmon::Job", "inputs", "model.pkl"), ("fedmon::Job", "args", "[" * 100_000), ("fedmon::Job", "jobId", "x"),
        ("fedmon::Monitor", "interval", 0), ("fedmon::Monitor", "interval", "1s"), ("fedmon::Monitor", "metrics", 3),
        ("fedmon::Aggregator", "function", "os:system"), ("local::Process", "env", {"A=B": "x"}),
        ("local::Process", "env", {"A": 1}), ("local::Process", "cwd", 3), ("local::Process", "pid", 1),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_when_they_are_set(
    ec: ExperimentController, rtype: str, name: str, value: object
) -> None:
    guid = ec.register_resource(rtype)

    with pytest.raises((InvalidAttributeValueError, AttributeAccessError), match=name):
        ec.set(guid, name, value)

    assert ec.get(guid, name) == ec.get_attribute(guid, name).default


def test_functions_of_the_same_name_are_told_apart(ec: ExperimentController) -> None:
    functions = [lambda results, number=number: {"number": number, "nodes": len(results)} for number in (1, 2)]

    guids = [ec.register_resource("fedmon::Aggregator", function=each) for each in (*functions, functions[0])]

    names = [ec.get(guid, "function") for guid in guids]
    assert names[0] == names[2] != names[1]
    assert [aggregation(name)({})["number"] for name in names] == [1, 2, 1]


def test_json_attributes_are_kept_as_documents_hold_them(ec: ExperimentController) -> None:
    guid = ec.register_resource("fedmon::Job", args='{"rounds": 3}', inputs={"w": [1.5]}, limits={"wall_s": 5})

    assert (ec.get(guid, "args"), ec.get(guid, "inputs")) == ({"rounds": 3}, {"w": [1.5]})
    with pytest.raises(UnknownTraceError):
        ec.trace(guid, "stdin")
