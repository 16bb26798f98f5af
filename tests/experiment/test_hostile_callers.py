"""What callers, threads and hooks may do wrong: it is refused by name at the call, and the rest goes on."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import FedmonError
from fedmon.compat.nepi.runner import ExperimentRunner
from fedmon.experiment.attributes import Attribute, Types
from fedmon.experiment.conditions import Metric
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.engine import SteadyClock, Timers
from fedmon.experiment.errors import (
    ExperimentOverError,
    InvalidAttributeValueError,
    InvalidConditionError,
    InvalidConnectionError,
    InvalidExperimentError,
    InvalidPolicyError,
    InvalidTimeError,
    UnknownAttributeError,
    UnknownGuidError,
    UnknownTaskError,
    UnknownTypeError,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.failure import FailureManager
from fedmon.experiment.pool import Pool
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.states import (
    ECState,
    FailureLevel,
    ResourceAction,
    ResourceState,
    TaskStatus,
)
from tests.support.waiting import wait_until

R, A = ResourceState, ResourceAction


def _run(ec: Any, **options: Any) -> int:
    return ExperimentRunner().run(ec, **options)


def _nothing(_rm: Hostile) -> None:
    """Do nothing."""


@clsinit_copy
class Hostile(ResourceManager):
    """Does in its start and its release what a test says."""

    _rtype = "hostile::One"
    at_start: Callable[[Hostile], Any] = staticmethod(_nothing)
    at_release: Callable[[Hostile], Any] = staticmethod(_nothing)

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("count", "help", type=Types.Integer, default=0))
        cls._register_attribute(Attribute("text", "help"))

    def valid_connection(self, guid: int) -> bool:
        return guid != 1

    def do_start(self) -> None:
        type(self).at_start(self)
        super().do_start()

    def do_release(self) -> None:
        type(self).at_release(self)
        super().do_release()


@clsinit_copy
class Plain(ResourceManager):
    """Does nothing of its own."""

    _rtype = "hostile::Plain"


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    ResourceFactory.register_type(Hostile)
    ResourceFactory.register_type(Plain)
    with ExperimentController("hostile", tmp_path) as made:
        made.register_resource("hostile::Plain")
        yield made
        Hostile.at_start = Hostile.at_release = staticmethod(_nothing)


HALF = "\udcff"
METRIC = {"name": "a", "comparison": ">", "value": 1.0}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda ec: ec.wait_started(None), UnknownGuidError),
        (lambda ec: ec.wait_started([[1]]), UnknownGuidError),
        (lambda ec: ec.deploy([1.0]), UnknownGuidError),
        (lambda ec: ec.release(object()), UnknownGuidError),
        (lambda ec: ec.wait_started(1, timeout="1s"), InvalidTimeError),
        (lambda ec: ec.wait_started(1, timeout=float("nan")), InvalidTimeError),
        (lambda ec: ec.wait(1, "STARTED"), InvalidConditionError),
        (lambda ec: ec.register_resource("hostile::Plain", guid=2**64), InvalidExperimentError),
        (lambda ec: ec.register_resource("hostile::Plain", timeouts=5), InvalidPolicyError),
        (lambda ec: ec.register_resource("hostile::Plain", retry=3), InvalidPolicyError),
        (lambda ec: ec.register_resource([]), UnknownTypeError),
        (lambda ec: ec.register_resource("hostile::One", connectedTo=99), UnknownGuidError),
        (lambda ec: ec.register_resource("hostile::One", connectedTo=1), InvalidConnectionError),
        (lambda ec: ec.register_resource("hostile::One", text=HALF), InvalidAttributeValueError),
        (lambda ec: ec.deploy(1, group=2**70), InvalidExperimentError),
        (lambda ec: ec.get_task([]), UnknownTaskError),
        (lambda ec: ec.set(1, [], 3), UnknownAttributeError),
        (lambda ec: _run(ec, max_runs=2, wait_guids=[[1]]), UnknownGuidError),
        (lambda ec: ec.measured(1, "a", "0.9"), InvalidConditionError),
        (lambda ec: ec.measured(1, "a", 10**400), InvalidConditionError),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_call(
    ec: ExperimentController, call: Callable[[Any], Any], expected: type[FedmonError]
) -> None:
    before = ec.resources

    with pytest.raises(expected):
        call(ec)

    assert ec.resources == before  # nothing was half registered
    ec.deploy()
    assert ec.wait_started(1, timeout=5.0)


@pytest.mark.parametrize(
    "options",
    [
        {"metric": "a > 0.9"},
        {"metric": Metric(**{**METRIC, "comparison": "=>"})},  # type: ignore[arg-type]
        {"metric": Metric(**{**METRIC, "value": "1"})},  # type: ignore[arg-type]
        {"metric": Metric(**{**METRIC, "value": float("nan")})},  # type: ignore[arg-type]
        {"metric": Metric(**METRIC, samples=0)},  # type: ignore[arg-type]
        {"state": R.STARTED, "at_least": 1.5},
        {"state": R.STARTED, "at_least": "1"},
        {"state": R.STARTED, "at_least": True},
    ],
)
def test_a_metric_or_a_quorum_that_nobody_could_judge_is_refused(
    ec: ExperimentController, options: dict[str, Any]
) -> None:
    other = ec.register_resource("hostile::Plain")

    with pytest.raises(InvalidConditionError):
        ec.register_condition(1, A.START, other, **options)


def test_odd_values_are_read_back_from_the_journal(ec: ExperimentController) -> None:
    guid = ec.register_resource("hostile::One", count=10**30)
    ec.register_condition(1, A.START, guid, metric=Metric(name="a", comparison=">", value=0.5))
    for value in (float("nan"), float("inf"), -float("inf")):
        ec.measured(guid, "a", value)
    ec.set(guid, "count", -(10**25))
    ec.shutdown()

    with ExperimentController.reconnect(ec.run_dir) as again:
        assert again.get(guid, "count") == -(10**25)


@pytest.mark.parametrize("options", [{"nthreads": -1}, {"nthreads": "x"}, {"nthreads": 1.5}, {"fm": FailureManager}])
def test_a_controller_that_cannot_work_is_not_made(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises((InvalidExperimentError, InvalidPolicyError)):
        ExperimentController("hostile", **{"local_dir": tmp_path, **options})


def test_a_callback_that_raises_while_a_controller_is_made_leaves_nothing_behind(tmp_path: Path) -> None:
    seen: list[ExperimentController] = []

    def add(ec: ExperimentController, nid: Any) -> None:
        seen.append(ec)
        raise ValueError(nid)

    with pytest.raises(ValueError, match="0"):
        ExperimentController("hostile", tmp_path, add_node_callback=add, topo_type="linear", node_count=2)

    assert seen[0].ecstate is ECState.TERMINATED


def test_whoever_shuts_down_second_waits_for_the_release_and_a_hook_does_not(ec: ExperimentController) -> None:
    may_go, is_in = threading.Event(), threading.Event()

    def release(rm: Any) -> None:
        rm.ec.shutdown()
        is_in.set()
        may_go.wait(10.0)

    Hostile.at_release = staticmethod(release)
    guid = ec.register_resource("hostile::One")
    ec.deploy()
    ec.wait_started(guid, timeout=5.0)
    states: list[Any] = []

    def end() -> None:
        ec.shutdown()
        states.append(ec.state(guid))

    threads = [threading.Thread(target=end) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert is_in.wait(5.0)
    with pytest.raises(ExperimentOverError):
        ec.register_resource("hostile::Plain")
    may_go.set()
    for thread in threads:
        thread.join(10.0)

    assert states == [R.RELEASED] * 3


def test_a_release_hook_that_releases_itself_runs_once(ec: ExperimentController) -> None:
    calls: list[int] = []

    def release(rm: Any) -> None:
        calls.append(rm.guid)
        rm.release()

    Hostile.at_release = staticmethod(release)
    guid = ec.register_resource("hostile::One")

    assert ec.release(guid).reached == (guid,)
    assert calls == [guid]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_would_end_a_thread_ends_none_of_the_pool(ec: ExperimentController, error: type[BaseException]) -> None:
    def start(_: Any) -> None:
        raise error

    Hostile.at_start = staticmethod(start)
    guid = ec.register_resource("hostile::One", critical=False)
    ec.deploy()
    assert ec.wait_started(guid, timeout=5.0).failed == (guid,)
    task = ec.schedule("0s", sys.exit, track=True)
    wait_until(lambda: ec.get_task(task).status is TaskStatus.ERROR, timeout_s=5.0)

    ec.release()
    assert ec._engine.close(timeout_s=1.0) == 0


def test_a_failure_manager_that_exits_is_done_without(tmp_path: Path) -> None:
    class Exits(FailureManager):
        def eval_failure(self, guid: int) -> None:
            sys.exit(guid)

    ResourceFactory.register_type(Plain)
    with ExperimentController("hostile", tmp_path, fm=Exits()) as ec:
        guid = ec.register_resource("hostile::Plain")
        ec.get_resource(guid).fail("on purpose")
        wait_until(lambda: ec.failure_level is FailureLevel.RM_FAILURE, timeout_s=5.0)


def test_a_resource_says_itself_why_the_experiment_gave_it_up(ec: ExperimentController) -> None:
    other = ec.register_resource("hostile::Plain")
    ec.register_condition(1, A.START, other, R.STOPPED, timeout="0s")

    ec.deploy()

    assert ec.wait_started(1, timeout=5.0).failed == (1,)
    assert "waited 0 s for resource 2" in ec.get_resource(1).reason


def test_after_the_end_nothing_is_promised_and_nobody_waits(ec: ExperimentController) -> None:
    ec.shutdown()

    for call in (
        lambda: ec.schedule("0s", print),
        lambda: ec.register_resource("hostile::Plain"),
        lambda: ec.set_with_conditions("critical", False, 1, 1, R.STARTED),
    ):
        with pytest.raises(FedmonError):
            call()
    assert ec.wait_released(1)


def test_threads_that_register_remove_and_release_at_once_meet_no_error_without_a_name(
    ec: ExperimentController,
) -> None:
    unnamed: list[BaseException] = []

    def work(number: int) -> None:
        for turn in range(40):
            try:
                match (number + turn) % 4:
                    case 0:
                        ec.deploy([ec.register_resource("hostile::Plain", hardRelease=True)])
                        ec.release()
                    case 1:
                        ec.deploy()
                        ec.filter_resources("hostile::Plain")
                        ec.describe()
                    case 2:
                        one, other = ec.register_resource("hostile::Plain"), ec.register_resource("hostile::Plain")
                        ec.register_condition(one, A.START, other, R.STARTED)
                        ec.remove_resource(other)
                    case _:
                        ec.plan()
            except FedmonError:
                pass
            except BaseException as error:  # noqa: BLE001 - that is the question
                unnamed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    ec.shutdown()

    assert unnamed == []
    ExperimentController.reconnect(ec.run_dir).shutdown()


def test_hooks_that_fill_the_pool_keep_no_other_from_being_released(tmp_path: Path) -> None:
    gate = threading.Event()
    released: list[int] = []
    Hostile.at_start = staticmethod(lambda rm: gate.wait(20.0) if rm.get("count") else None)
    Hostile.at_release = staticmethod(lambda rm: released.append(rm.guid))
    ResourceFactory.register_type(Hostile)
    ec = ExperimentController("hostile", tmp_path, nthreads=2)
    try:
        good = ec.register_resource("hostile::One")
        ec.deploy(good)
        assert ec.wait_started(good, timeout=5.0)
        for _ in range(2):
            ec.register_resource("hostile::One", count=1)
        ec.deploy()
        wait_until(lambda: ec._engine.pool.busy == 2, timeout_s=5.0)
        end = threading.Thread(target=ec.shutdown)
        end.start()
        wait_until(lambda: good in released, timeout_s=5.0)  # while the other two are still at work
    finally:
        gate.set()
        end.join(30.0)
        Hostile.at_start = Hostile.at_release = staticmethod(_nothing)
    assert ec.ecstate is ECState.TERMINATED


def test_a_pool_that_gets_no_thread_goes_on_when_it_gets_one() -> None:
    class Poor(Pool):
        gets = False

        @staticmethod
        def _thread(run: Callable[[], None], name: str) -> bool:
            return Poor.gets and Pool._thread(run, name)

    pool, done = Poor(), threading.Event()
    pool.put(lambda: None)
    assert pool.threads == 0
    Poor.gets = True
    pool.put(done.set)
    assert done.wait(5.0)
    assert pool.close(timeout_s=5.0) == 0


def test_types_of_values_are_read_as_nepi_calls_them(tmp_path: Path) -> None:
    ResourceFactory.register_type(Hostile)
    file = tmp_path / "nepi.xml"
    file.write_text(
        f'<experiment exp_id="e" run_id="1" nthreads="2" local_dir="{tmp_path}"><rms><rm guid="1" rtype="hostile::One" '
        'state="0"><attributes><attribute name="critical" value="False" type="BOOL"/><attribute name="count" value="7" '
        'type="Integer"/></attributes></rm></rms></experiment>'
    )

    with ExperimentController.load(file) as ec:
        assert (ec.get(1, "critical"), ec.get(1, "count")) == (False, 7)


def test_a_failed_run_says_who_failed_though_nobody_was_waited_for(ec: ExperimentController) -> None:
    Hostile.at_start = staticmethod(lambda _rm: 1 // 0)
    ec.register_resource("hostile::One")
    runner = ExperimentRunner()

    runner.run(ec, max_runs=1, wait_time=0.1)

    assert runner.failed_runs == [1]
    assert "critical, failed" in runner.failures[1]


def test_moments_that_are_taken_back_are_forgotten() -> None:
    timers = Timers(SteadyClock(), lambda _key: None)
    ahead = SteadyClock()() + 3600.0

    for number in range(5000):
        timers.set(number % 3, ahead + number)
        timers.set(number % 3, None)

    assert len(timers._heap) < 200
    timers.close()


def test_a_run_that_was_forgotten_without_an_end_can_be_taken_up(tmp_path: Path) -> None:
    ResourceFactory.register_type(Plain)
    forgotten = ExperimentController("hostile", tmp_path)
    guid, folder = forgotten.register_resource("hostile::Plain"), forgotten.run_dir
    del forgotten
    gc.collect()

    with ExperimentController.reconnect(folder) as again:
        again.deploy()
        assert again.wait_started(guid, timeout=5.0)


def test_what_is_over_is_promised_no_value(ec: ExperimentController) -> None:
    other = ec.register_resource("hostile::Plain", critical=False)
    ec.deploy()
    ec.get_resource(other).fail("on purpose")

    with pytest.raises(InvalidConditionError, match="FAILED"):
        ec.set_with_conditions("critical", False, other, 1, R.STARTED)
