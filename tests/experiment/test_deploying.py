"""What is deployed, started, set, released and kept: defects of before, each with what happened."""

from __future__ import annotations

import itertools
import os
import weakref
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.experiment import (
    Attribute,
    ExperimentController,
    Flags,
    ResourceFactory,
    ResourceManager,
    clsinit_copy,
)
from fedmon.experiment.check.graph import ImpossiblePlanError
from fedmon.experiment.errors import (
    DuplicateGuidError,
    InvalidConditionError,
    InvalidStateError,
    InvalidTaskError,
    UnknownGuidError,
)
from fedmon.experiment.events import Removed
from fedmon.experiment.states import ResourceState
from tests.experiment.own_types import added, experiment, own, plain, raising, started
from tests.support.waiting import wait_until


def test_what_ended_never_runs_again_by_a_deploy(ec: ExperimentController, tmp_path: Path) -> None:
    guid = ec.register_resource("local::Process", command=["sh", "-c", f"echo ran >> {tmp_path}/log"])
    ec.deploy()
    assert ec.wait_finished(guid, timeout=60)
    other = ec.register_resource("local::Process", command=["true"])
    ec.deploy([guid, other])
    assert ec.wait_finished(other, timeout=60)
    assert (tmp_path / "log").read_text() == "ran\n"

    ec.get_resource(guid).start_with_conditions()  # which asks for that
    wait_until(lambda: (tmp_path / "log").read_text() == "ran\nran\n")


def test_what_comes_later_has_a_later_time(ec: ExperimentController) -> None:
    guids = plain(ec, 50)
    for one, other in itertools.pairwise(guids):
        ec.register_condition(other, "START", one, "STARTED")
    started(ec)

    times = [ec.get_start_time(guid) for guid in guids]
    assert times == sorted({time for time in times if time is not None})


class Sited(ResourceManager):
    """Registers an attribute of its own, has another member, and lacks the decorator."""

    _rtype = "test::Sited"
    missing = ()

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("site", "Where.", flags=Flags.Global, default="here"))
        cls._register_attribute(Attribute("name", "As its owner says."))


def test_a_type_without_a_decorator_has_its_attributes(ec: ExperimentController) -> None:
    assert Sited.has_attribute("site")  # before it is registered, too
    guid = added(ec, Sited, site="there", name="mine").guid
    assert (ec.get(guid, "site"), ec.get(guid, "name")) == ("there", "mine")
    ec.deploy()  # whatever its members are called
    assert ec.wait_started(timeout=60)
    with pytest.raises(UnknownGuidError):
        ec.state("mine")
    assert "site" not in {each.name for each in ResourceManager.get_attributes()}


def test_a_global_value_reaches_all_that_have_none_of_their_own(ec: ExperimentController) -> None:
    @clsinit_copy
    class Fresh(Sited):
        _rtype = "test::Fresh"

    first, own_value = added(ec, Fresh).guid, ec.register_resource("test::Fresh", site="mine")
    ec.set_global("test::Fresh", "site", "lab")
    later = ec.register_resource("test::Fresh")

    assert [ec.get(guid, "site") for guid in (first, own_value, later)] == ["lab", "mine", "lab"]
    assert ec.get(added(ec, Sited).guid, "site") == "here"


@pytest.mark.parametrize("ends", ["release", "shutdown"])
def test_an_experiment_is_saved_once(ends: str, tmp_path: Path) -> None:
    with experiment(tmp_path, persist=True) as ec:
        first, _ = plain(ec, 2)
        started(ec)
        if ends == "release":
            ec.release(first)
            assert not list(Path(ec.run_dir).glob("*.xml"))  # the other one is not over
            ec.release()

    assert len(list(Path(ec.run_dir).glob("*.xml"))) == 1


def test_a_release_ends_though_the_experiment_cannot_be_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with experiment(tmp_path / "file" / "below", persist=True, journal=False) as ec:
        ec.register_resource("test::Plain")
        assert ec.release()

    assert "was released, and could not be saved: " in caplog.text


def test_functions_run_in_the_order_of_a_graph(ec: ExperimentController) -> None:
    order: list[int] = []
    first = [ec.call(order.append, number) for number in range(3)]
    ec.call(sum, [1, 2], after=first, name="sum")
    ec.call(lambda: order.append(9), after=["sum"])
    ec.deploy()

    assert ec.wait_finished(timeout=60)
    assert (sorted(order[:3]), order[3:], ec.result("sum")) == ([0, 1, 2], [9], 3)


def test_a_function_that_was_loaded_says_that_no_file_holds_it(ec: ExperimentController) -> None:
    ec.call(sum, [1, 2])

    with ExperimentController.load(ec.save()) as loaded:
        (problem,) = loaded.plan().errors
        assert problem.text == "resource 1 (python::Function) is a function, which no file holds: make it by ec.call"
        with pytest.raises(ImpossiblePlanError, match="no file holds"):
            loaded.deploy()
        assert loaded.state(1) is ResourceState.NEW


def test_a_function_that_returned_keeps_its_result_and_not_its_arguments(ec: ExperimentController) -> None:
    class Large:
        """An argument."""

    def once(_large: Large) -> object:
        calls.append(1)
        return object

    large, calls = Large(), list[int]()
    left = weakref.ref(large)
    guid = ec.call(once, large)
    del large
    ec.deploy()
    assert ec.wait_finished(timeout=60)
    wait_until(lambda: left() is None)

    ec.get_resource(guid).start()  # which calls it no second time

    assert (ec.result(guid), ec.state(guid), calls) == (object, ResourceState.STOPPED, [1])


def test_a_call_whose_condition_cannot_be_registered_leaves_nothing(
    ec: ExperimentController, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def filling(file: int, text: bytes) -> int:
        if b'"event":"condition"' in bytes(text):
            raise OSError(28, "No space left on device")
        return write(file, text)

    first = ec.call(int)
    monkeypatch.setattr("fedmon.experiment.journal.os.write", filling)
    with pytest.raises(StorageError, match="No space left"):
        ec.call(int, after=[first])

    assert ec.resources == [first]


def test_an_exception_of_a_function_keeps_its_traceback(ec: ExperimentController) -> None:
    def divide(by: int) -> float:
        return 1 / by

    async def later() -> None:
        pass

    made_later = type("Later", (), {"__call__": staticmethod(later)})  # to call it makes an instance
    guid, never, _ = ec.call(divide, 0), ec.call(divide, 1), ec.call(made_later)
    ec.deploy(guid)

    found = ec.wait_finished(guid, timeout=60)
    assert (found.aborted, found.reasons[guid]) == (True, "start failed: ZeroDivisionError: division by zero")
    places = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as raised:
            ec.result(guid)
        places.append([place.name for place in raised.traceback][1:])
    assert places == [["result", "result", "do_start", "<lambda>", "divide"]] * 2
    with pytest.raises(InvalidStateError, match="is NEW, and has no result; wait_finished waits for it"):
        ec.result(never)
    for ask in (ec.call, lambda wrong: ec.schedule("1s", wrong)):
        for wrong in (later, made_later()):
            with pytest.raises(InvalidTaskError, match="is a coroutine function"):
                ask(wrong)
        with pytest.raises(InvalidTaskError, match="3 cannot be called: give a function"):
            ask(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidTaskError, match="is not a function"):
        ec.result(ec.register_resource("local::Process"))


def test_a_function_that_returns_a_coroutine_fails(ec: ExperimentController) -> None:
    async def later(_by_s: float) -> None:
        pass

    guid = ec.call(lambda: later(1.0))
    ec.deploy()

    found = ec.wait_finished(timeout=60)
    assert found.reasons == {guid: "start failed: it returned a coroutine: call asyncio.run with that"}


def test_names_and_texts_stand_for_guids_states_and_actions(ec: ExperimentController) -> None:
    first = ec.register_resource("test::Plain", name="first")
    second = ec.register_resource("test::Plain", name="second", connectedTo="first", after=["first"])
    ec.register_condition("first", "stop", "first", "STARTED")
    ec.deploy(["first", "second"])

    assert ec.wait(["second"], "STARTED", timeout=60).reached == (second,)
    assert ec.state("first", hr=True) == "STOPPED"
    assert ec.get_resource("second").connections == {first}
    with pytest.raises(UnknownGuidError, match="known: 1-2, first, second"):
        ec.stop("third")
    with pytest.raises(TypeError, match=r"ExperimentController\.wait_finished\(\) takes from 1 to 2"):
        ec.wait_finished("first", 10)  # type: ignore[call-arg] # as people call it
    with pytest.raises(DuplicateGuidError, match="the name 'first' is taken by resource 1"):
        ec.register_resource("test::Plain", name="first")
    with pytest.raises(InvalidConditionError, match="use one of NEW, DISCOVERED"):
        ec.register_condition("first", "START", "second", "ENDED")


def test_a_wait_that_timed_out_says_why(ec: ExperimentController) -> None:
    one, two = plain(ec, 2)

    found = ec.wait_started(timeout=0.05)
    assert (found.timed_out, "deploy was not called for it, and 1 more" in found.reason) == ((one, two), True)
    assert found.reason.startswith("timed out after 0.05 s: resource 1 (test::Plain) is NEW")
    answers = iter([False, True])
    quick = ec.wait(one, "STARTED", lambda: next(answers))
    assert (quick.left, quick.reason.partition(":")[0]) == ((one,), "ended by its caller")
    assert (quick.reached, quick.aborted, bool(quick)) == ((), False, False)


def test_an_explanation_of_a_resource_that_is_being_removed_says_so(ec: ExperimentController) -> None:
    guid = ec.register_resource("test::Plain")
    ec.engine.note(Removed(guids=(guid,)))

    with pytest.raises(UnknownGuidError, match=f"resource {guid} not found"):
        ec.explain(guid)


def test_a_wait_says_of_each_that_failed_why(ec: ExperimentController) -> None:
    ResourceFactory.register_type(own("test::Bad", do_start=raising(OSError, "no route")))
    guids = plain(ec, 2, "test::Bad", critical=False)
    ec.deploy()

    found = ec.wait_started(timeout=60)
    assert found.reasons == dict.fromkeys(guids, "start failed: OSError: no route")
    assert found.reason.startswith("resource 1 (test::Bad) failed: start failed: OSError: no route; resource 2")
