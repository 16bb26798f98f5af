"""What NEPI's controller did wrong, or never did, and fedmon does not; numbered as on the page for porters.

Most of them are tested where the part is that would show them; INDEX says where. What stands here alone is tested here.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmon.experiment import (
    ECState,
    ExperimentController,
    FailureManager,
    ResourceAction,
    ResourceFactory,
    ResourceManager,
    ResourceState,
    SFormats,
    Task,
    TaskStatus,
    clsinit_copy,
)
from fedmon.experiment.document import from_toml, from_xml
from fedmon.experiment.durations import moment_text
from fedmon.experiment.errors import InvalidTimeError
from tests.experiment.small_experiment import SmallExperiment
from tests.support.named_tests import problems_of
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/howtos/porting-from-nepi.md"
WHERE = "tests/experiment"
HERE = f"{WHERE}/test_defects_of_nepi.py"
CONTROLLER, MACHINE, WHOLE = (f"{WHERE}/test_{part}.py" for part in ("controller", "machine", "whole_experiments"))
ATTRIBUTES, OF_RESOURCES, HOOKS = (f"{WHERE}/test_{part}.py" for part in ("attributes", "resource_attributes", "hooks"))
TIMES, TASKS, POOL, RUNNER = (
    f"{WHERE}/test_{part}.py" for part in ("durations", "task_order", "parallel_run", "runner")
)
SHAPES, POLICIES, SURFACE = (f"{WHERE}/test_{part}.py" for part in ("topology", "failure_policies", "nepi_surface"))
BAD, FILES, ROUND = (f"{WHERE}/document/test_{part}.py" for part in ("bad_documents", "nepi_files", "round_trip"))
PROCESSES, AGAIN = f"{WHERE}/federation/test_local_processes.py", f"{WHERE}/test_taking_up.py"
CONNECTIONS = f"{WHERE}/test_resource_connections.py"

INDEX: dict[int, tuple[str, ...]] = {
    1: (f"{CONTROLLER}::test_a_script_runs_from_registration_to_release",),
    2: (
        f"{CONTROLLER}::test_an_attribute_is_set_when_others_are_there",
        f"{MACHINE}::test_an_attribute_is_set_when_its_condition_holds_and_the_resource_is_started",
    ),
    3: (
        f"{HERE}::test_defect_03_an_experiment_is_serialized_with_all_that_it_has",
        f"{WHOLE}::test_what_is_saved_is_loaded_and_runs",
    ),
    4: (f"{SHAPES}::test_each_shape_has_the_nodes_and_edges_of_it",),
    5: (f"{SHAPES}::test_each_edge_has_a_network_of_its_own",),
    6: (
        f"{CONTROLLER}::test_an_own_failure_manager_decides",
        f"{POLICIES}::test_a_custom_failure_manager_works",
    ),
    7: (
        f"{TIMES}::test_absolute_times_work",
        f"{HERE}::test_defect_07_a_task_runs_at_an_absolute_time",
    ),
    8: (f"{ROUND}::test_nothing_is_lost_in_xml", f"{FILES}::test_the_rest_of_a_file_of_nepi_is_read"),
    9: (
        f"{BAD}::test_code_where_a_number_is_meant_is_refused_and_not_run",
        f"{BAD}::test_code_in_a_topology_is_refused_and_code_in_a_text_stays_text",
        f"{BAD}::test_declarations_are_refused",
    ),
    10: (f"{CONTROLLER}::test_groups_may_be_named_and_joined",),
    11: (f"{CONTROLLER}::test_releasing_some_leaves_the_others_and_hard_releases_go",),
    12: (
        f"{PROCESSES}::test_a_collector_writes_what_there_is_and_marks_what_there_is_not",
        f"{PROCESSES}::test_a_collector_takes_what_is_written_until_the_release",
    ),
    13: (
        f"{WHOLE}::test_a_circle_is_refused_at_deployment_and_named_in_the_plan",
        f"{WHERE}/test_planning.py::test_a_circle_of_conditions_is_found_with_its_path",
    ),
    14: (
        f"{TIMES}::test_bad_delay_text_is_refused_at_the_call_and_named",
        f"{CONTROLLER}::test_a_condition_that_cannot_be_is_refused_at_once",
        f"{HERE}::test_defect_14_a_bad_delay_is_refused_at_every_call_and_all_goes_on_to_its_end",
    ),
    15: (
        f"{OF_RESOURCES}::test_flags_are_enforced_before_and_after_deploy",
        f"{ATTRIBUTES}::test_types_are_enforced",
    ),
    16: (f"{HERE}::test_defect_16_failed_resources_leave_nothing_that_goes_on",),
    17: (f"{CONTROLLER}::test_guids_are_given_or_the_next_and_never_replaced",),
    18: (
        f"{CONTROLLER}::test_a_connection_that_one_side_does_not_take_is_on_neither",
        f"{CONNECTIONS}::test_a_one_sided_valid_connection_leaves_no_half_connection",
    ),
    19: (
        f"{POOL}::test_results_that_nobody_reads_are_not_kept_where_none_are_wanted",
        f"{HERE}::test_defect_19_results_of_tasks_that_nobody_tracks_are_not_kept",
    ),
    20: (
        f"{WHERE}/test_deploying.py::test_a_wait_says_of_each_that_failed_why",
        f"{CONTROLLER}::test_a_failure_ends_the_waiting_says_why_and_leaves_the_rest_to_be_released",
    ),
    21: (f"{HERE}::test_defect_21_an_experiment_needs_no_id",),
    22: (f"{WHOLE}::test_an_experiment_is_drawn_with_its_conditions",),
    23: (f"{FILES}::test_states_are_read_by_the_numbers_of_the_version_that_wrote_them",),
    24: (f"{ATTRIBUTES}::test_a_range_holds_its_ends_in_both_orders",),
    25: (
        f"{MACHINE}::test_what_is_released_or_failed_stays_so",
        f"{HERE}::test_defect_25_an_action_in_a_state_that_is_past_it_is_dropped",
    ),
    26: (f"{MACHINE}::test_a_delay_after_a_state_that_was_passed_over_counts_from_the_next_one",),
    27: (
        f"{MACHINE}::test_one_may_wait_for_a_failure",
        f"{HERE}::test_defect_27_a_delay_after_a_failure_counts_from_the_failure",
    ),
    28: (
        f"{AGAIN}::test_a_journal_that_cannot_be_written_ends_the_experiment",
        f"{HERE}::test_defect_28_a_controller_that_failed_is_shut_down_all_the_same",
    ),
    29: (
        f"{HOOKS}::test_a_hundred_hooks_that_block_hold_up_nobody",
        f"{CONTROLLER}::test_a_hook_that_does_not_end_holds_nobody_else_and_no_shutdown",
    ),
    30: (
        f"{CONTROLLER}::test_a_thousand_blocked_resources_take_no_thread",
        f"{HERE}::test_defect_30_a_chain_registered_in_reverse_takes_no_half_second_a_link",
    ),
    31: (f"{PROCESSES}::test_a_collector_writes_what_there_is_and_marks_what_there_is_not",),
    32: (f"{RUNNER}::test_the_default_rule",),
    33: (f"{RUNNER}::test_runs_that_fail_are_named_and_give_no_sample",),
    34: (f"{HERE}::test_defect_34_guids_are_given_once_whichever_thread_asks",),
    35: (f"{HERE}::test_defect_03_an_experiment_is_serialized_with_all_that_it_has",),
    36: (f"{TIMES}::test_durations_are_read_alone_and_together",),
    37: (f"{SURFACE}::test_a_method_is_there_with_its_arguments_in_their_order",),
    38: (f"{HOOKS}::test_a_release_ends_whatever_its_hook_does",),
    39: (f"{POOL}::test_results_come_by_iterating_and_once",),
    40: (
        f"{AGAIN}::test_a_hook_in_whose_midst_the_process_was_killed_runs_again",
        f"{AGAIN}::test_timers_retries_and_numbers_go_on",
    ),
}
"""The tests that fail when fedmon does the same, by the number of the defect."""

READY, STARTED, STOPPED, FAILED = (
    ResourceState.READY,
    ResourceState.STARTED,
    ResourceState.STOPPED,
    ResourceState.FAILED,
)


@clsinit_copy
class Simple(ResourceManager):
    """Does nothing of its own."""

    _rtype = "test::Simple"


@clsinit_copy
class Failing(ResourceManager):
    """Cannot be started."""

    _rtype = "test::Failing"

    def do_start(self) -> None:
        raise RuntimeError("no power")


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    for rclass in (Simple, Failing):
        ResourceFactory.register_type(rclass)
    with ExperimentController("trial", tmp_path) as made:
        yield made


def test_each_defect_has_a_test_that_runs_everywhere() -> None:
    assert {number: problems_of(tests) for number, tests in INDEX.items()} == {number: [] for number in INDEX}


def test_each_defect_is_in_the_table_of_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)

    assert list(map(int, rows)) == list(INDEX) == list(range(1, len(INDEX) + 1))


def test_defect_03_an_experiment_is_serialized_with_all_that_it_has(ec: ExperimentController) -> None:
    one, two = ec.register_resource("test::Simple", critical=False), ec.register_resource("test::Simple")
    ec.register_connection(one, two)
    ec.register_condition(two, ResourceAction.START, one, STARTED, "1.5s")
    ec.persist = True

    for text, read in ((ec.serialize(), from_xml), (ec.serialize(SFormats.TOML), from_toml)):
        found = read(text)
        assert found.persist
        assert found.resources[0].attributes == {"critical": False}
        assert [str(condition) for _, condition in found.resources[1].conditions] == ["STARTED for 1.5 s"]
        assert found.resources[1].connections == (one,)


def test_defect_07_a_task_runs_at_an_absolute_time(ec: ExperimentController) -> None:
    now = datetime.datetime.now(datetime.UTC)
    past, soon = (moment_text(now + datetime.timedelta(seconds=seconds)) for seconds in (-5, 0.1))

    late, early = (ec.schedule(at, time.time, track=True) for at in (soon, past))

    wait_until(lambda: _task(ec, late).status is TaskStatus.DONE)
    assert _task(ec, early).result < _task(ec, late).result
    assert _task(ec, late).result >= _task(ec, late).due


def test_defect_14_a_bad_delay_is_refused_at_every_call_and_all_goes_on_to_its_end(ec: ExperimentController) -> None:
    one, two = ec.register_resource("test::Simple"), ec.register_resource("test::Simple")

    for text in ("soon", "5", "1 s", "-1s", "1m30", "s", "1e9999s"):
        with pytest.raises(InvalidTimeError):
            ec.register_condition(two, ResourceAction.START, one, STARTED, text)
        with pytest.raises(InvalidTimeError):
            ec.set_with_conditions("critical", False, two, one, STARTED, text)
        with pytest.raises(InvalidTimeError):
            ec.schedule(text, lambda: None)

    ec.deploy()
    assert ec.wait_started([one, two], timeout=10)
    ec.shutdown()
    assert ec.ecstate is ECState.TERMINATED


def test_defect_16_failed_resources_leave_nothing_that_goes_on(ec: ExperimentController) -> None:
    before = threading.active_count()
    guids = [ec.register_resource("test::Failing", critical=False) for _ in range(100)]
    ec.register_condition(guids, ResourceAction.STOP, ec.register_resource("test::Simple"), STOPPED, "1h")

    ec.deploy(guids)

    assert len(ec.wait_started(guids, timeout=30).failed) == 100
    assert not ec.snapshot.wants
    assert not ec.snapshot.watchers
    assert not ec.abort
    wait_until(lambda: threading.active_count() <= before + 2)  # a thread that has nothing to do goes


def test_defect_19_results_of_tasks_that_nobody_tracks_are_not_kept(ec: ExperimentController) -> None:
    done: list[int] = []
    for number in range(200):
        ec.schedule(None, functools.partial(done.append, number))

    wait_until(lambda: len(done) == 200)

    assert [ec.get_task(number) for number in range(1, 201)] == [None] * 200


def test_defect_21_an_experiment_needs_no_id(tmp_path: Path) -> None:
    with ExperimentController(local_dir=tmp_path) as one, ExperimentController(local_dir=tmp_path) as other:
        assert one.exp_id != other.exp_id
        assert Path(one.run_dir).parent == tmp_path / one.exp_id


def test_defect_25_an_action_in_a_state_that_is_past_it_is_dropped() -> None:
    ec = SmallExperiment()
    failed, ready = ec.add(ResourceManager, critical=False), ec.add(ResourceManager)
    failed.fail()
    ready.deploy()

    for rm in (failed, ready):
        rm.deploy_with_conditions()
    failed.start_with_conditions()
    ec.work()

    assert ec.states() == ["FAILED", "READY"]
    assert not ec.machine.wants


def test_defect_27_a_delay_after_a_failure_counts_from_the_failure() -> None:
    ec = SmallExperiment()
    failing, rescue = ec.add(ResourceManager, critical=False), ec.add(ResourceManager)
    ec.condition(rescue.guid, ResourceAction.START, failing.guid, FAILED, "0.2s")
    ec.deploy()

    failing.fail()
    assert ec.states() == ["FAILED", "READY"]

    assert ec.wait_started(rescue.guid, timeout=10)
    assert (rescue.start_time - failing.failed_time).total_seconds() >= 0.2


def test_defect_28_a_controller_that_failed_is_shut_down_all_the_same(tmp_path: Path) -> None:
    class Severe(FailureManager):
        def eval_failure(self, guid: int) -> None:
            self.set_ec_failure(f"resource {guid} took the controller with it")

    for rclass in (Simple, Failing):
        ResourceFactory.register_type(rclass)
    with ExperimentController("trial", tmp_path, fm=Severe()) as ec:
        simple, failing = ec.register_resource("test::Simple"), ec.register_resource("test::Failing")
        ec.deploy()
        wait_until(lambda: ec.ecstate is ECState.FAILED)
        assert ec.wait_finished([simple], timeout=10).aborted

    assert ec.ecstate is ECState.TERMINATED
    assert {ec.state(guid) for guid in (simple, failing)} == {ResourceState.RELEASED}


def test_defect_30_a_chain_registered_in_reverse_takes_no_half_second_a_link(ec: ExperimentController) -> None:
    guids = [ec.register_resource("test::Simple") for _ in range(100)]
    for guid, following in itertools.pairwise(guids):
        ec.register_condition(guid, ResourceAction.START, following, STARTED)
    began = time.monotonic()

    ec.deploy()
    assert ec.wait_started(guids, timeout=30)

    assert time.monotonic() - began < 10  # NEPI takes 50 s


def test_defect_34_guids_are_given_once_whichever_thread_asks(ec: ExperimentController) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ec.register_resource("test::Simple"), range(200)))

    assert sorted(found) == list(range(1, 201))
    assert sorted(ec.resources) == sorted(found)


def _task(ec: ExperimentController, number: int) -> Task:
    task = ec.get_task(number)
    assert task is not None
    return task
