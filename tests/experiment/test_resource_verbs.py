"""Verbs run hooks one at a time, only in the states they are for; what hooks raise fails their own resource alone."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fedmon.experiment.errors import ExperimentOverError
from fedmon.experiment.resource import ResourceManager, clsinit_copy, failtrap
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verbs import perform
from tests.experiment.small_experiment import START, SmallExperiment, retries

VERBS = ["discover", "reserve", "provision", "deploy", "start", "stop"]


@clsinit_copy
class Scripted(ResourceManager):
    """Does before each hook what a test says."""

    _rtype = "test::Scripted"

    def __init__(self, ec: Any, guid: int) -> None:
        super().__init__(ec, guid)
        self.script: dict[str, Callable[[], Any]] = {}
        self.did: list[str] = []

    def _do(self, verb: str) -> bool:
        self.did.append(verb)
        return self.script.get(verb, lambda: True)() is not False

    def do_discover(self) -> None:
        if self._do("discover"):
            super().do_discover()

    def do_configure(self) -> None:
        self._do("configure")

    def do_deploy(self) -> None:
        if self._do("deploy"):
            super().do_deploy()

    def do_start(self) -> None:
        if self._do("start"):
            super().do_start()

    def do_stop(self) -> None:
        if self._do("stop"):
            super().do_stop()

    def do_release(self) -> None:
        if self._do("release"):
            super().do_release()

    def do_fail(self) -> None:
        if self._do("fail"):
            super().do_fail()


class Plain(ResourceManager):
    _rtype = "test::Plain"


def raising(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> None:
        raise error

    return raise_it


def reached(rm: ResourceManager, state: ResourceState) -> ResourceManager:
    if state is not ResourceState.NEW:
        rm.ec._became(rm.guid, state)
    return rm


# --- guards -----------------------------------------------------------------------------------------------------------

GUARDS = {
    "discover": "NEW DISCOVERED RESERVED PROVISIONED READY STARTED STOPPED",
    "reserve": "NEW DISCOVERED RESERVED PROVISIONED READY STARTED STOPPED",
    "provision": "NEW DISCOVERED RESERVED PROVISIONED READY STARTED STOPPED",
    "configure": "NEW DISCOVERED RESERVED PROVISIONED READY STARTED STOPPED",
    "deploy": "NEW DISCOVERED RESERVED PROVISIONED READY",
    "start": "READY STOPPED",
    "stop": "STARTED",
}


@pytest.mark.parametrize("verb", GUARDS)
def test_a_verb_in_the_wrong_state_is_logged_and_nothing_happens(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    works = []
    for state in ResourceState:
        ec = SmallExperiment()
        rm = reached(ec.add(Plain), state)
        events = len(ec.events)
        caplog.clear()

        getattr(rm, verb)()

        said = [record for record in caplog.records if f"{verb} does nothing in state {state.name}" in record.message]
        if said or state >= ResourceState.FAILED:
            assert (len(ec.events), rm.state) == (events, state)
        else:
            works.append(state.name)

    assert works == GUARDS[verb].split()


def test_states_and_times_follow_the_verbs() -> None:
    ec = SmallExperiment()
    rm = ec.add(Plain)
    states = [rm.state]

    for verb in [*VERBS, "release"]:
        ec.advance(1)
        getattr(rm, verb)()
        states.append(rm.state)

    times = [
        rm.discover_time, rm.reserved_time, rm.provision_time, rm.ready_time, rm.start_time, rm.stop_time,
        rm.release_time,
    ]  # fmt: skip
    assert [state.name for state in states] == [state.name for state in ResourceState if state.name != "FAILED"]
    assert [moment.timestamp() - START for moment in times if moment is not None] == [1, 2, 3, 4, 5, 6, 7]
    assert rm.failed_time is None


def test_discovering_after_provisioning_goes_back() -> None:
    rm = reached(ec_rm := (ec := SmallExperiment()).add(Plain), ResourceState.PROVISIONED)

    rm.discover()

    assert (ec_rm.state.name, ec.states()) == ("DISCOVERED", ["DISCOVERED"])


def test_what_stopped_starts_again() -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted)
    ec.deploy(1)

    rm.stop()
    rm.start()

    assert (rm.state.name, rm.did) == ("STARTED", ["deploy", "start", "stop", "start"])


def test_a_released_resource_stays_released() -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted)
    rm.release()

    for call in (*(getattr(rm, verb) for verb in VERBS), rm.fail, rm.release, rm.set_started, rm.set_failed):
        call()

    assert (rm.state.name, rm.did) == ("RELEASED", ["release"])


def test_a_type_knows_which_verbs_it_does_nothing_for() -> None:
    class Old(ResourceManager):
        _rtype = "test::Old"

        def start(self) -> None:
            super().start()

        def set_stopped(self, time: Any = None) -> None:
            super().set_stopped(time)

    assert [verb for verb in [*VERBS, "release", "fail"] if Plain.overrides(verb)] == []
    assert [verb for verb in [*VERBS, "release", "fail"] if Old.overrides(verb)] == ["start", "stop"]
    assert Scripted.overrides("deploy")
    assert Scripted.overrides("configure")
    assert not Plain.overrides("configure")
    assert not Scripted.overrides("reserve")


# --- what hooks raise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["deploy", "start", "stop"])
def test_a_hook_that_raises_fails_its_resource_and_no_other(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    # given
    ec = SmallExperiment()
    bad, other = ec.add(Scripted, critical=False), ec.add(Scripted)
    bad.script[verb] = raising(OSError("no such device"))

    # when
    ec.deploy(1, group=1)
    ec.deploy(2, group=2)
    if verb == "stop":
        with pytest.raises(OSError, match="no such device"):
            bad.stop()
    ec.work()

    # then
    assert [bad.state.name, other.state.name] == ["FAILED", "STARTED"]
    assert ec._seen(1).reason == f"{verb} failed: OSError: no such device"
    records = [record for record in caplog.records if record.levelno == logging.ERROR and record.exc_info]
    assert [f"{verb} of resource 1" in record.getMessage() for record in records] == [True]


@pytest.mark.parametrize("is_raised", [True, False])
def test_a_hook_may_fail_its_resource_itself(is_raised: bool) -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted)

    def give_up() -> None:
        rm.fail("no licence")
        if is_raised:
            raise OSError("no licence")

    rm.script["start"] = give_up
    ec.deploy(1)

    assert (rm.state.name, rm.did, ec._seen(1).reason) == ("FAILED", ["deploy", "start", "fail"], "no licence")


def test_failtrap_gives_the_exception_to_who_called() -> None:
    ec = SmallExperiment()
    rm = reached(ec.add(Scripted), ResourceState.READY)
    rm.script["start"] = raising(ValueError("bad"))  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match="bad"):
        rm.start()

    ec.work()
    assert rm.state is ResourceState.FAILED


@pytest.mark.parametrize("error", [SystemExit(2), GeneratorExit(), MemoryError()])
def test_even_an_exit_in_a_hook_fails_the_resource_and_goes_no_further(error: BaseException) -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted)
    rm.script["deploy"] = raising(error)

    ec.deploy(1)

    assert rm.state is ResourceState.FAILED


def test_a_verb_within_a_verb_fails_once_and_as_the_outer_one() -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted, retry=retries(1))
    rm.script["deploy"] = rm.discover
    rm.script["discover"] = raising(RuntimeError("nobody there"))

    ec.deploy(1)
    assert rm.state is ResourceState.NEW  # it is tried again
    ec.advance(2)

    assert rm.did == ["deploy", "discover", "deploy", "discover", "fail"]
    assert ec._seen(1).reason == "deploy failed (2 times): RuntimeError: nobody there"


def test_a_verb_that_failed_is_tried_again_as_registered() -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted, retry=retries(3))
    rm.script["deploy"] = lambda: raising(OSError("busy"))() if len(rm.did) < 3 else True

    ec.deploy(1)
    ec.advance(10)

    assert (rm.did, rm.state.name) == (["deploy", "deploy", "deploy", "start"], "STARTED")


def test_other_methods_may_be_trapped_too() -> None:
    class Watching(Scripted):
        _rtype = "test::Watching"

        @failtrap
        def look(self) -> None:
            raise OSError("blind")

    ec = SmallExperiment()
    rm = ec.add(Watching)

    with pytest.raises(OSError, match="blind"):
        rm.look()

    assert (rm.state.name, ec._seen(1).reason) == ("FAILED", "look failed: OSError: blind")


def test_a_trapped_method_that_calls_a_verb_which_fails_tells_it_once() -> None:
    class Watching(Scripted):
        _rtype = "test::Watching"

        @failtrap
        def look(self) -> None:
            self.deploy()

    ec = SmallExperiment()
    rm = ec.add(Watching, retry=retries(1))
    rm.script["deploy"] = raising(OSError("blind"))

    with pytest.raises(OSError, match="blind"):
        rm.look()

    assert (rm.state.name, len(ec.timers)) == ("NEW", 1)  # it is tried again


def test_a_verb_that_a_type_overrides_without_trap_fails_it_all_the_same() -> None:
    class Old(ResourceManager):
        _rtype = "test::Old"

        def deploy(self) -> None:
            raise KeyError("address")

    ec = SmallExperiment()
    rm = ec.add(Old)

    ec.deploy(1)

    assert (rm.state.name, "KeyError: 'address'" in ec._seen(1).reason) == ("FAILED", True)


@pytest.mark.parametrize("script", [raising(OSError("held")), raising(SystemExit(1))])
def test_a_release_that_raises_releases_all_the_same_and_is_no_failure(script: Callable[[], Any]) -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted)
    rm.script["release"] = script

    ec.release(1)

    assert (rm.state.name, ec.machine.level.name) == ("RELEASED", "OK")


@pytest.mark.parametrize("script", [raising(OSError("held")), raising(SystemExit(1)), lambda: False])
def test_a_failure_hook_cannot_keep_its_resource_from_failing(script: Callable[[], Any]) -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted)
    rm.script["fail"] = script

    perform(rm, "fail", "the node is gone")

    assert (rm.state.name, ec._seen(1).reason) == ("FAILED", "the node is gone")


def test_overridden_last_verbs_that_raise_end_the_resource() -> None:
    class Stubborn(ResourceManager):
        _rtype = "test::Stubborn"

        def fail(self, reason: str = "") -> None:  # noqa: ARG002
            raise RuntimeError("never")

        def release(self) -> None:
            raise RuntimeError("never")

    ec = SmallExperiment()
    one, two = ec.add(Stubborn), ec.add(Stubborn)

    perform(one, "fail", "lost")
    perform(two, "release")

    assert [one.state.name, two.state.name] == ["FAILED", "RELEASED"]
    assert ec._seen(1).reason == "lost"


# --- hooks that call back ---------------------------------------------------------------------------------------------


def test_a_resource_reschedules_itself_while_it_deploys_until_another_is_ready() -> None:
    # given: as the real types do it, with the delay of the type
    ec = SmallExperiment()
    waiting, node = ec.add(Scripted), ec.add(Plain)

    def look() -> bool:
        if node.state >= ResourceState.READY:
            return True
        ec.schedule(waiting.reschedule_delay, waiting.deploy)
        return False

    waiting.script["deploy"] = look
    ec.deploy(1)
    ec.advance(1.1)
    seen = [(waiting.state.name, len(waiting.did))]

    # when
    ec.deploy(2, group=2)
    ec.advance(0.5)

    # then
    assert seen == [("NEW", 3)]
    assert (waiting.state.name, waiting.did) == ("STARTED", ["deploy"] * 4 + ["start"])


def test_a_hook_may_call_back_into_the_experiment() -> None:
    ec = SmallExperiment()
    rm = ec.add(Scripted)

    def busy() -> None:
        other = ec.add(Plain)
        rm.register_connection(other.guid)
        ec.deploy(other.guid, group=9)
        rm.set("critical", False)
        rm.configure()

    rm.script["start"] = busy
    ec.deploy(1)
    ec.work()

    assert ec.states() == ["STARTED", "STARTED"]
    assert sorted(rm.connections) == [2]
    assert rm.did == ["deploy", "start", "configure"]


def test_a_hook_that_calls_its_own_verb_does_not_do_so_for_ever() -> None:
    ec = SmallExperiment()
    one, two = ec.add(Scripted), ec.add(Scripted)
    for rm in (one, two):
        rm.set_ready()
    one.script["start"], two.script["start"] = two.start, one.start

    one.start()

    assert (one.did, two.did, ec.states()) == (["start"], ["start"], ["STARTED", "STARTED"])


def test_conditions_and_groups_are_seen_as_registered() -> None:
    ec = SmallExperiment()
    rm = ec.add(Plain)
    ec.add(Plain)

    ec.condition(1, ResourceAction.START, 2, ResourceState.STARTED)
    ec.condition(1, ResourceAction.START, 2, ResourceState.READY, "2m30s")
    ec.deploy(1, group=4)

    assert rm.conditions == {
        ResourceAction.START: [([2], ResourceState.STARTED, None), ([2], ResourceState.READY, "150s")]
    }
    assert rm.deployment_group == 4


def test_a_resource_registers_its_own_conditions() -> None:
    ec = SmallExperiment()
    rm, other = ec.add(Plain), ec.add(Plain)

    rm.register_condition(ResourceAction.START, other.guid, ResourceState.STARTED, "1s")
    seen = dict(rm.conditions)
    rm.unregister_condition(other.guid)

    assert seen == {ResourceAction.START: [([2], ResourceState.STARTED, "1s")]}
    assert rm.conditions == {}


def test_a_resource_that_outlives_its_experiment_says_so() -> None:
    rm = SmallExperiment().add(Plain)
    gc.collect()

    with pytest.raises(ExperimentOverError, match="resource 1"):
        rm.deploy()


def test_resources_say_in_the_log_who_they_are(caplog: pytest.LogCaptureFixture) -> None:
    ec = SmallExperiment()
    rm = ec.add(Plain)

    rm.error("could not connect", "some output", "refused")
    rm.warn("slow")
    rm.debug("not shown")

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "resource 1 (test::Plain): could not connect stdout: some output stderr: refused",
        "resource 1 (test::Plain): slow",
    ]
