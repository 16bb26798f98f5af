"""A verb runs until its hook returns: retry, timeout, failure and release follow from that."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment import ExperimentController, ResourceFactory, ResourceManager, ResourceState, Retry, failtrap
from fedmon.experiment.errors import InvalidStateError
from fedmon.experiment.events import Verb
from tests.experiment.own_types import added, blocking, deployed, experiment, flaky, own, plain, raising, started
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

VERBS: tuple[Verb, ...] = ("deploy", "start", "stop")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("failures", [1, 99])
def test_a_hook_that_says_its_state_and_then_raises_is_tried_again_and_then_fails(
    verb: Verb, failures: int, ec: ExperimentController
) -> None:
    rtype = own("test::Flaky", **{f"do_{verb}": flaky(verb, itertools.count(), failures)})
    guid = added(ec, rtype, critical=False, retry={verb: Retry(times=1, delay_s=0.01)}).guid
    ec.register_condition(guid, "stop", guid, "STARTED")
    ec.deploy()

    if failures == 1:
        assert ec.wait_finished(timeout=60)
        wait_until(lambda: not ec.snapshot.resources[guid].is_busy)
        assert ec.state(guid) is ResourceState.STOPPED
    else:
        assert ec.wait(guid, "FAILED", timeout=60)
        assert ec.wait_finished(guid, timeout=60).reasons == {guid: f"{verb} failed (2 times): OSError: no route"}


def test_a_timeout_ends_a_hook_that_said_its_state_and_then_blocks(tmp_path: Path) -> None:
    gate, began = threading.Event(), time.monotonic()
    options = {"timeouts": {"start": 0.1}, "critical": False}
    with deployed(tmp_path, options, do_start=blocking(gate, says_first=True)) as ec:
        assert ec.wait(1, "FAILED", timeout=60)
        assert ec.get_resource(1).reason == "start failed: start did not end within 0.1 s"

    assert time.monotonic() - began < 15  # neither its release nor the end waited for it
    gate.set()


def test_a_hook_left_behind_takes_no_slot_and_is_not_heard(tmp_path: Path) -> None:
    gate, ended = threading.Event(), threading.Event()

    def do_start(self: ResourceManager) -> None:
        if not gate.is_set():
            gate.wait(20.0)
            self.set_stopped()
            ended.set()
        self.set_started()

    rtype = own("test::Slow", do_start=do_start)
    with experiment(tmp_path, rtype, max_running=1) as ec:
        first = ec.register_resource("test::Slow", timeouts={"start": 0.1}, critical=False)
        second = ec.register_resource("test::Slow", timeouts={"start": 0.1}, critical=False)
        ec.deploy()

        assert ec.wait([first, second], "FAILED", timeout=60)
        gate.set()
        assert ended.wait(60)
        assert ec.state(first) is ResourceState.FAILED


def test_a_process_ends_though_a_hook_never_does(tmp_path: Path) -> None:
    code = f"""
import threading
from fedmon.experiment import *
class Never(ResourceManager):
    _rtype = "test::Never"
    def do_start(self): threading.Event().wait()
ResourceFactory.register_type(Never)
ec = ExperimentController("never", {str(tmp_path)!r})
ec.register_resource("test::Never", timeouts={{"start": 0.1}}, critical=False)
ec.deploy()
assert ec.wait(1, "FAILED", timeout=60)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_timeout_of_a_verb_does_not_count_while_it_waits_for_a_slot(tmp_path: Path) -> None:
    gate = threading.Event()
    with experiment(tmp_path, own("test::Blocking", do_start=blocking(gate)), max_running=1) as ec:
        first = ec.register_resource("test::Blocking")
        second = ec.register_resource("test::Blocking", timeouts={"start": 5.0}, critical=False)
        ec.deploy()

        assert ec.wait(second, "FAILED", timeout=5.2).timed_out == (second,)
        assert ec.explain(second).reason == "its start waits for a hook to return: max_running is 1"
        gate.set()
        assert ec.wait_started([first, second], timeout=60)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let no thread for hooks start until the event is set."""
    start, may_start = threading.Thread.start, threading.Event()

    def limited(self: threading.Thread) -> None:
        if self.name == "fedmon-experiment-hook" and not may_start.is_set():
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    yield may_start
    may_start.set()


def test_a_deploy_returns_and_goes_on_later_if_no_thread_can_be_started(
    no_threads: threading.Event, tmp_path: Path
) -> None:
    with deployed(tmp_path, do_start=lambda self: self.set_started()) as ec:
        assert ec.wait_started(timeout=0.2).timed_out

        no_threads.set()
        assert ec.wait_started(timeout=60)


def test_a_release_that_waits_for_a_thread_survives_a_shutdown(
    no_threads: threading.Event, ec: ExperimentController
) -> None:
    released = threading.Event()

    def do_release(self: ResourceManager) -> None:
        released.set()
        self.set_released()

    guid = added(ec, own("test::Own", do_release=do_release)).guid
    other = threading.Thread(target=ec.release)
    other.start()
    wait_until(lambda: ec.snapshot.resources[guid].calling == "release")
    ending = threading.Thread(target=ec.shutdown)
    ending.start()
    wait_until(lambda: ec.engine._stops == 1)

    no_threads.set()
    ending.join(60)
    other.join(60)
    assert released.is_set()


def test_a_start_that_had_ended_does_not_run_again_if_a_release_is_asked_first(
    no_threads: threading.Event, tmp_path: Path
) -> None:
    gate, ran = threading.Event(), []

    def do_start(self: ResourceManager) -> None:
        ran.append(self.guid)
        self.set_started()
        self.set_stopped()
        gate.wait(20)

    no_threads.set()
    with deployed(tmp_path, do_start=do_start, do_release=ResourceManager.set_released) as left:
        assert left.wait_finished(timeout=60)
        left.give_up()
        no_threads.clear()

        with ExperimentController.reconnect(left.run_dir) as ec:
            other = threading.Thread(target=ec.release)
            other.start()
            wait_until(lambda: ec.snapshot.resources[1].calling == "release")
            ec.get_resource(1).take_up("start")  # its thread comes before that of the release
            gate.set()
            no_threads.set()
            other.join(60)

    assert ran == [1]


def test_a_resource_is_removed_though_its_type_cannot_kill_its_work(ec: ExperimentController) -> None:
    guid = added(ec, own("test::Endless", end_at_once=raising(OSError, "no process"))).guid
    ec.remove_resource(guid)

    assert guid not in ec


def test_a_deploy_that_comes_late_does_not_take_the_place_of_a_start_that_waits(tmp_path: Path) -> None:
    with deployed(tmp_path, do_start=lambda _: None) as ec:
        wait_until(lambda: ec.snapshot.resources[1].returned)

        with pytest.raises(InvalidStateError, match="its start is under way"):
            ec.get_resource(1).deploy()

        assert ec.snapshot.resources[1].calling == "start"
        ec.get_resource(1).set_started()
        assert ec.snapshot.resources[1].calling is None


def test_so_many_hooks_run_at_once(tmp_path: Path) -> None:
    lock, three, running, most = threading.Lock(), threading.Barrier(3), 0, 0

    def do_start(self: ResourceManager) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        three.wait(60)
        threading.Event().wait(0.01)
        with lock:
            running -= 1
        self.set_started()

    with experiment(tmp_path, own("test::Counted", do_start=do_start), max_running=3) as ec:
        plain(ec, 30, "test::Counted")
        ec.deploy()

        assert ec.wait_started(timeout=60)
        assert most == 3


def test_a_stop_waits_for_the_hook_of_the_start(ec: ExperimentController) -> None:
    gate, order = threading.Event(), []

    def do_start(self: ResourceManager) -> None:
        self.set_started()
        gate.wait(20.0)
        order.append("start")

    def do_stop(self: ResourceManager) -> None:
        order.append("stop")
        self.set_stopped()

    guid = added(ec, own("test::Two", do_start=do_start, do_stop=do_stop)).guid
    ec.register_condition(guid, "stop", guid, "started")
    started(ec, guid)
    gate.set()

    assert ec.wait_finished(guid, timeout=60)
    assert order == ["start", "stop"]


@pytest.mark.parametrize(
    ("state", "verb"),
    [("NEW", "start"), ("READY", "stop"), ("STARTED", "deploy"), ("STOPPED", "stop"), ("FAILED", "start")],
)
def test_a_verb_in_a_wrong_state_raises_and_changes_nothing(state: str, verb: str, ec: ExperimentController) -> None:
    rm = ec.get_resource(ec.register_resource("test::Plain", critical=False))
    rm.set_state(ResourceState[state])

    with pytest.raises(InvalidStateError, match=f"{verb} of resource 1 .* is {state}, and not"):
        getattr(rm, verb)()
    assert rm.state.name == state


def test_a_hook_without_super_is_named(tmp_path: Path) -> None:
    with deployed(tmp_path, do_start=lambda _: None) as ec:
        said = "its hook returned without super().do_start()"
        wait_until(lambda: said in ec.wait_started(1, timeout=0.1).reason, what="the reason")
        assert said in ec.explain(1).reason
        assert said in fedmon_here("experiment", "show", ec.run_dir).stdout


def test_a_hook_may_put_its_verb_off(tmp_path: Path) -> None:
    calls = itertools.count()

    def do_deploy(self: ResourceManager) -> None:
        if next(calls) < 3:
            self.ec.schedule("5ms", self.deploy)
        else:
            self.set_ready()

    def do_release(self: ResourceManager) -> None:
        if next(calls) < 8:
            self.ec.schedule("5ms", self.release)
        else:
            self.set_released()

    with deployed(tmp_path, do_deploy=do_deploy, do_release=do_release) as ec:
        assert ec.wait_started(1, timeout=60)

    assert (next(calls), ec.state(1)) == (9, ResourceState.RELEASED)


def test_a_verb_within_a_verb_is_a_part_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def do_deploy(self: ResourceManager) -> None:
        self.deploy()  # which goes on here
        self.discover()
        self.provision()
        self.set_ready()

    @failtrap
    def do_provision(self: ResourceManager) -> None:
        raise OSError("no disk")

    with deployed(tmp_path, do_deploy=do_deploy, do_provision=do_provision) as ec:
        found = ec.wait_deployed(1, timeout=60)
        assert (found.aborted, found.reasons) == (True, {1: "deploy failed: OSError: no disk"})
    assert [each.levelno for each in caplog.records].count(logging.ERROR) == 1


def test_a_method_that_is_trapped_fails_its_resource(ec: ExperimentController) -> None:
    @failtrap
    def upload(self: ResourceManager) -> None:
        raise OSError("no space")

    guid = added(ec, own("test::Trapped", upload=upload), critical=False).guid
    with pytest.raises(OSError, match="no space"):
        ec.get_resource(guid).upload()  # type: ignore[attr-defined]

    assert ec.get_resource(guid).reason == "upload failed: OSError: no space"


def test_what_a_caller_does_by_hand_raises_and_fails_the_resource(ec: ExperimentController) -> None:
    guid = added(ec, own("test::Bad", do_start=raising(OSError, "no route")), critical=False).guid
    ec.get_resource(guid).deploy()
    with pytest.raises(OSError, match="no route"):
        ec.start(guid)

    assert ec.state(guid) is ResourceState.FAILED


def test_an_exception_that_cannot_be_shown_fails_its_resource_all_the_same(tmp_path: Path) -> None:
    class UnsaidError(Exception):
        def __str__(self) -> str:
            raise OSError("no words")

    with deployed(tmp_path, {"critical": False}, do_start=raising(UnsaidError)) as ec:
        assert ec.wait(1, "FAILED", timeout=60)
        assert ec.get_resource(1).reason.endswith("UnsaidError: a UnsaidError that cannot be shown: OSError")


def test_a_failure_comes_before_the_hook_that_clears_up(ec: ExperimentController) -> None:
    seen = []

    def do_fail(self: ResourceManager) -> None:
        seen.append(self.state)
        raise OSError("cannot clear up")

    guid = added(ec, own("test::Clearing", do_fail=do_fail)).guid
    ec.get_resource(guid).fail("no reason at all")
    ec.get_resource(guid).fail("again")

    assert (seen, ec.abort) == ([ResourceState.FAILED] * 2, True)  # a hook that raised is called again
    assert ec.explain(guid).reason.startswith("it failed: no reason at all")
    assert ec.get_resource(guid).reason == "no reason at all"


@pytest.mark.parametrize("how", ["raises", "returns", "exits"])
def test_a_release_ends_whatever_its_hook_does(how: str, tmp_path: Path) -> None:
    def do_release(self: ResourceManager) -> None:
        if how == "raises":
            raise OSError("no route")
        if how == "exits":
            sys.exit(3)

    def neighbour_releases(self: ResourceManager, _other: ResourceManager) -> None:
        raise OSError("no route")

    with deployed(tmp_path, do_release=do_release, neighbour_releases=neighbour_releases) as ec:
        ec.register_resource("test::Own", connectedTo=1)
        assert ec.release(1)
        assert ec.state(1) is ResourceState.RELEASED


@pytest.mark.parametrize("timeouts", [{}, {"release": 0.1}])
def test_a_release_that_takes_too_long_is_given_up(timeouts: dict[Verb, float], ec: ExperimentController) -> None:
    gate = threading.Event()
    guid = added(ec, own("test::Stuck", do_release=lambda _: gate.wait(20)), timeouts=timeouts).guid
    ec.release_timeout_s = 60.0 if timeouts else 0.1
    found = ec.release()

    assert (found.timed_out, ec.state(guid)) == (() if timeouts else (guid,), ResourceState.RELEASED)
    assert "release did not end within 0.1 s" in ec.get_resource(guid).reason
    gate.set()


def test_an_interrupt_shortens_a_release_and_is_raised_at_its_end(tmp_path: Path) -> None:
    gate, began, late = threading.Event(), time.monotonic(), list[int]()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def do_release(_self: ResourceManager) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        gate.wait(60)

    try:
        with pytest.raises(KeyboardInterrupt), deployed(tmp_path, do_release=do_release) as ec:
            ec.schedule("0.5s", lambda: late.append(1))  # due while it is released
    finally:
        signal.signal(signal.SIGINT, before)
        gate.set()

    assert (ec.state(1), ec.ecstate.name, late) == (ResourceState.RELEASED, "TERMINATED", [])
    assert time.monotonic() - began < 30


def test_a_hook_that_waits_for_its_own_resource_is_refused(tmp_path: Path) -> None:
    def do_start(self: Any) -> None:
        self.ec.wait_started(self.guid)

    with deployed(tmp_path, {"critical": False}, do_start=do_start) as ec:
        assert ec.wait(1, "FAILED", timeout=60)
        assert "would wait in its own hook to be STARTED" in ec.get_resource(1).reason


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_a_release_within_a_hook_does_not_wait_and_the_experiment_is_saved_at_its_end(
    tmp_path: Path, *, is_by_hand: bool
) -> None:
    states = []

    def do_start(self: Any) -> None:
        self.ec.release(self.guid)
        states.append(self.ec.state(self.guid))

    releasing = own("test::Releasing", do_start=do_start, do_release=lambda self: self.set_released())
    with experiment(tmp_path, releasing, persist=True) as ec:
        guid = ec.register_resource("test::Releasing")
        if is_by_hand:
            ec.get_resource(guid).deploy()
            ec.get_resource(guid).start()
        else:
            ec.deploy()
        assert ec.wait_released(guid, timeout=60)

    assert states == [ResourceState.READY]
    (saved,) = Path(ec.run_dir).glob("*.xml")
    assert 'state="RELEASED"' in saved.read_text()


@pytest.mark.parametrize("verb", ["start", "release"])
def test_a_hook_may_shut_its_experiment_down(verb: str, tmp_path: Path) -> None:
    done = threading.Event()

    def hook(self: Any) -> None:
        if verb == "release":
            self.release()  # which goes on here
        self.ec.shutdown()
        done.set()

    ec: ExperimentController
    with deployed(tmp_path, **{f"do_{verb}": hook}) as ec:
        if verb == "release":
            ec.release(1)

        assert done.wait(60)
    assert (ec.ecstate.name, ec.state(1)) == ("TERMINATED", ResourceState.RELEASED)


def test_a_hundred_hooks_that_block_hold_up_no_other(ec: ExperimentController) -> None:
    gate = threading.Event()
    ResourceFactory.register_type(own("test::Blocking", do_start=blocking(gate)))
    blocked = plain(ec, 100, "test::Blocking")
    free = ec.register_resource("local::Process", command=["true"])
    ec.deploy(blocked, wait_all_ready=False)
    ec.deploy([free])

    assert ec.wait_finished(free, timeout=60)
    assert not ec.wait_started(blocked, timeout=0)
    gate.set()
    assert ec.wait_started(blocked, timeout=60)


def test_thousands_of_short_hooks_take_turns_on_fewer_threads(ec: ExperimentController) -> None:
    ResourceFactory.register_type(own("test::Quick", do_start=flaky("start", itertools.count(), 0)))
    guids = plain(ec, 2000, "test::Quick")
    ec.deploy()

    assert ec.wait_started(guids, timeout=60)
    assert threading.active_count() < 2000  # how many is a matter of how often they wait for each other
