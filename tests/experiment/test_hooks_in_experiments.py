"""Resource types with hooks of every kind, in a real experiment: each hurts at most itself, and the end comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.clock import Deadline
from fedmon.experiment.attributes import Attribute, Flags, Types
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import AttributeAccessError, InvalidAttributeValueError, InvalidConnectionError
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.states import ECState, ResourceState
from fedmon.experiment.traces import Trace, TraceAttr, read_trace, trace_path
from tests.support.waiting import wait_until


@clsinit_copy
class Machine(ResourceManager):
    """Is released when all that is connected to it is, as NEPI's nodes."""

    _rtype = "hooks::Machine"
    _reschedule_delay = "10ms"

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("cores", "help", type=Types.Integer, range=(1, 64), flags=Flags.Design))

    def do_release(self) -> None:
        if any(rm.state < ResourceState.RELEASED for rm in self.get_connected()):
            self.ec.schedule(self.reschedule_delay, self.release)
            return
        super().do_release()


@clsinit_copy
class Tool(ResourceManager):
    """Deploys itself when its machine is ready, and does in its start what a test says."""

    _rtype = "hooks::Tool"
    _reschedule_delay = "10ms"
    _release_patience_s = 0.2
    script: Callable[[Tool], Any] = staticmethod(lambda _rm: None)
    at_failure: Callable[[Tool], Any] = staticmethod(lambda _rm: None)

    @classmethod
    def _register_traces(cls) -> None:
        cls._register_trace(Trace("stdout", "help"))

    def valid_connection(self, guid: int) -> bool:
        return self.ec.get_resource(guid).is_rm_instance("hooks::Machine")

    def do_deploy(self) -> None:
        if any(rm.state < ResourceState.READY for rm in self.get_connected("hooks::Machine")):
            self.ec.schedule(self.reschedule_delay, self.deploy)
            return
        super().do_deploy()

    def do_start(self) -> None:
        self.script(self)
        Path(self.ec.run_dir, f"{self.guid}.stdout").write_text("hello")
        super().do_start()

    def do_fail(self) -> None:
        self.at_failure(self)
        super().do_fail()

    def trace(self, name: str, attr: TraceAttr | str = TraceAttr.ALL, block: int = 512, offset: int = 0) -> Any:
        return read_trace(trace_path(self.ec.run_dir, f"{self.guid}.{name}"), attr, block, offset)


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    kept = ResourceFactory._resource_types
    ResourceFactory.register_type(Machine)
    ResourceFactory.register_type(Tool)
    with ExperimentController("hooks", tmp_path) as made:
        yield made
    ResourceFactory._resource_types = kept


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def tool(ec: ExperimentController, script: Callable[[Tool], Any] = lambda _rm: None, **options: Any) -> int:
    guid = ec.register_resource("hooks::Tool", **options)
    rm = ec.get_resource(guid)
    assert isinstance(rm, Tool)
    rm.script = script
    ec.set(guid, "critical", value=False)
    return guid


def names(ec: ExperimentController, *guids: int) -> list[str | ResourceState]:
    return [ec.state(guid, hr=True) for guid in guids]


def test_types_with_dependencies_deploy_and_release_in_their_order(ec: ExperimentController) -> None:
    # given: the tools come before their machine
    tools = [tool(ec) for _ in range(3)]
    machine = ec.register_resource("hooks::Machine")
    for guid in tools:
        ec.register_connection(guid, machine)

    # when
    ec.deploy()
    found = ec.wait_started([*tools, machine], timeout=10)
    ec.release()

    # then
    assert sorted(found.reached) == [*tools, machine]
    assert set(names(ec, *tools, machine)) == {"RELEASED"}
    released = [ec.get_release_time(guid) for guid in (*tools, machine)]
    assert all(moment is not None for moment in released)
    assert released[-1] == max(moment for moment in released if moment is not None)


def raises(_rm: Tool) -> None:
    raise OSError("no such program")


def exits(_rm: Tool) -> None:
    raise SystemExit(1)


def calls_back(rm: Tool) -> None:
    assert isinstance(rm.ec, ExperimentController)
    rm.ec.get(rm.guid, "critical")
    other = rm.ec.register_resource("hooks::Machine")
    rm.ec.register_connection(rm.guid, other)
    rm.ec.deploy(other)
    assert rm.ec.wait_started(other, timeout=5).reached
    rm.ec.set(rm.guid, "hardRelease", value=True)


def waits_for_itself(rm: Tool) -> None:
    assert isinstance(rm.ec, ExperimentController)
    rm.ec.wait_started(rm.guid, timeout=0.1)


@pytest.mark.parametrize(
    ("script", "ends"),
    [(raises, "FAILED"), (exits, "FAILED"), (calls_back, "STARTED"), (waits_for_itself, "STARTED")],
)
def test_a_hook_hurts_nobody_else(ec: ExperimentController, script: Callable[[Tool], Any], ends: str) -> None:
    bad, good = tool(ec, script), tool(ec)

    ec.deploy([bad, good])
    ec.wait_started([bad, good], timeout=10)

    assert names(ec, bad, good) == [ends, "STARTED"]
    assert not ec.abort


def test_a_hook_that_blocks_fails_in_time_and_nobody_else_waits(
    ec: ExperimentController, gate: threading.Event
) -> None:
    bad, good = tool(ec, lambda _rm: gate.wait(), timeouts={"start": 0.2}), tool(ec)

    ec.deploy([bad, good])
    ec.wait_started([bad, good], timeout=10)
    deadline = Deadline(3)
    ec.shutdown()

    assert not deadline.passed()
    assert names(ec, bad, good) == ["RELEASED", "RELEASED"]
    assert ec.get_failed_time(bad) is not None
    assert ec.ecstate is ECState.TERMINATED


@pytest.mark.parametrize("hook", ["release", "shutdown"])
def test_a_hook_that_ends_its_own_experiment_does_not_hang(ec: ExperimentController, hook: str) -> None:
    def end(rm: Tool) -> None:
        getattr(rm.ec, hook)()

    bad, good = tool(ec, end), tool(ec)
    deadline = Deadline(8)

    ec.deploy([bad, good])
    wait_until(lambda: set(names(ec, bad, good)) == {"RELEASED"}, 8)
    ec.shutdown()

    assert not deadline.passed()


def test_flags_types_and_ranges_hold_at_the_controller(ec: ExperimentController) -> None:
    machine = ec.register_resource("hooks::Machine")

    ec.set(machine, "cores", 8)
    with pytest.raises(InvalidAttributeValueError, match="from 1 to 64"):
        ec.set(machine, "cores", 65)
    with pytest.raises(InvalidAttributeValueError):
        ec.set(machine, "cores", "8")
    with pytest.raises(AttributeAccessError):
        ec.set_with_conditions("cores", 4, machine, machine, ResourceState.STARTED)
    ec.deploy()
    with pytest.raises(AttributeAccessError, match="Design"):
        ec.set(machine, "cores", 4)

    assert ec.get(machine, "cores") == 8


def test_a_connection_that_the_other_side_refuses_is_on_neither(ec: ExperimentController) -> None:
    one, two = tool(ec), tool(ec)

    with pytest.raises(InvalidConnectionError):
        ec.register_connection(one, two)

    assert [sorted(ec.get_resource(guid).connections) for guid in (one, two)] == [[], []]


def test_traces_of_a_type_are_read_through_the_controller(ec: ExperimentController) -> None:
    guid = tool(ec)
    ec.enable_trace(guid, "stdout")
    ec.deploy()
    ec.wait_started(guid, timeout=10)

    assert ec.trace_enabled(guid, "stdout")
    assert ec.trace(guid, "stdout") == "hello"
    assert ec.trace(guid, "stdout", TraceAttr.STREAM, 2, 1) == "ll"
    assert ec.trace(guid, "stdout", TraceAttr.SIZE) == 5


def test_a_failure_hook_that_blocks_keeps_nobody(ec: ExperimentController, gate: threading.Event) -> None:
    bad, good = tool(ec, raises), tool(ec)
    rm = ec.get_resource(bad)
    assert isinstance(rm, Tool)
    rm.at_failure = lambda _rm: gate.wait()

    ec.deploy([bad, good])
    found = ec.wait_started([bad, good], timeout=5)

    assert (names(ec, bad, good), found.timed_out) == (["FAILED", "STARTED"], ())
