"""What perfmon did wrong, and fedmon does not; numbered as the list of its known weaknesses.

Most of them are tested where the part is that would show them; INDEX says where. What stands here alone is tested here.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa

from fedmon.node.job.options import parsers
from fedmon.report.source import Source
from fedmon.report.views import perfmon
from tests.report.aliases.recorded import RecordedHost, Values

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "howtos" / "migrating-from-perfmon.md"
HERE = "tests/node/job/test_perfmon_weaknesses.py"

TREE, ACCOUNTS = (f"tests/node/test_job_{part}.py" for part in ("tree", "accounts"))
PERF, EVENTS, REPLAY = (f"tests/node/test_perf_{part}.py" for part in ("output", "tables", "replay"))
TARGET, RAPL = "tests/node/test_perf_job_target.py", "tests/node/test_energy_rapl.py"
PORTS, MACHINE = (f"tests/node/test_collectors_{part}.py" for part in ("infiniband", "trees"))
GPUS, GPU_JOBS = (f"tests/node/test_nvml_{part}.py" for part in ("values", "collectors"))
VIEW, PLOTS = "tests/report/aliases/test_perfmon_view.py", "tests/report/charts/test_charts.py"
MERGE, HOSTS, LAYOUT = (f"tests/node/job/test_{part}.py" for part in ("merge", "hosts", "layout"))

INDEX: dict[int, str] = {
    1: f"{TREE}::test_each_process_of_a_chain_counts_once_and_only_the_given_one_is_a_root",
    2: f"{TREE}::test_a_root_that_ends_between_two_ticks_ends_the_job_and_takes_nothing_back",
    3: f"{TREE}::test_children_may_vanish_in_the_middle_of_a_sample",
    4: f"{TREE}::test_known_bytes_and_calls_count_exactly_and_apart_from_each_other",
    5: f"{TREE}::test_counters_never_go_down_while_children_come_and_go",
    6: f"{TREE}::test_a_zombie_is_counted_as_one_and_does_not_live",
    7: f"{ACCOUNTS}::test_a_number_that_was_given_again_is_another_process",
    8: f"{TREE}::test_many_children_at_once_are_found_without_a_wait_and_threads_are_no_processes",
    9: f"{TREE}::test_a_known_burn_counts_as_the_kernel_counts_it_user_and_system",
    10: f"{MACHINE}::test_the_busy_share_needs_two_samples_and_leaves_idle_and_iowait_out",
    11: f"{VIEW}::test_events_are_counts_of_an_interval_by_group_and_derived_values_begin_with_derv",
    12: f"{TREE}::test_a_known_allocation_is_seen_and_shared_pages_count_once_in_pss",
    13: f"{HERE}::test_weakness_13_samples_of_one_second_stay_apart_and_no_value_is_repeated",
    14: "tests/contract/test_verbs.py::test_perfmons_name_of_the_interval_is_hidden_and_taken",
    15: f"{REPLAY}::test_a_perf_that_dies_is_named_and_started_again",
    16: f"{EVENTS}::test_a_formula_follows_arithmetic_and_gives_no_number_for_what_is_missing",
    17: f"{PERF}::test_what_was_not_counted_or_is_not_supported_is_a_gap_and_no_zero",
    18: f"{REPLAY}::test_each_group_is_tried_before_perf_is_started_for_good",
    19: f"{TARGET}::test_a_process_that_perf_cannot_know_is_uncounted",
    20: f"{REPLAY}::test_each_group_is_tried_before_perf_is_started_for_good",
    21: f"{REPLAY}::test_hardware_events_and_what_follows_from_them_are_told",
    22: f"{EVENTS}::test_each_group_fits_the_counters_with_two_threads_and_a_watchdog",
    23: f"{PORTS}::test_data_are_octets_and_packets_are_packets",
    24: f"{MACHINE}::test_traffic_that_leaves_the_host_is_counted_once",
    25: f"{RAPL}::test_a_wrap_is_counted_once_and_each_zone_has_its_own_range",
    26: f"{GPU_JOBS}::test_a_sampler_gets_a_fresh_reading_at_each_tick_and_nvml_runs_once",
    27: f"{GPUS}::test_every_value_is_in_base_units",
    28: f"{GPUS}::test_each_mig_instance_has_series_of_its_own",
    29: f"{GPU_JOBS}::test_memory_and_multiprocessors_are_summed_over_the_processes_of_a_job",
    30: f"{MERGE}::test_bytes_written_by_recording_and_merging_grow_no_faster_than_the_samples",
    31: "tests/node/job/test_options.py::test_samples_wait_no_longer_than_the_check_point_and_ten_seconds",
    32: "tests/common/store/test_recording_killed.py::test_kill_loses_at_most_the_batch_in_hand_and_never_the_file",
    33: f"{MERGE}::test_everything_of_all_hosts_is_in_the_merged_recording",
    34: "tests/node/job/test_stop_file.py::test_finished_nothing_or_no_file_stops_and_any_other_text_does_not",
    35: "tests/node/job/test_identity.py::test_a_missing_user_is_unknown_and_no_error",
    36: f"{HOSTS}::test_of_eight_hosts_that_end_together_exactly_one_merges_every_sample_once",
    37: f"{LAYOUT}::test_two_jobs_and_two_hosts_share_no_file",
    38: f"{VIEW}::test_hosts_that_measure_different_things_stay_apart_and_keep_their_own_clocks",
    39: f"{PLOTS}::test_the_x_axis_is_time_and_no_category_defect_39",
    40: f"{PLOTS}::test_titles_name_what_is_joined_and_do_not_grow_defect_40",
    41: f"{PLOTS}::test_absent_and_constant_metrics_leave_no_empty_chart_defect_41",
    42: f"{HERE}::test_weakness_42_43_options_and_keys_are_what_the_page_says",
    43: f"{HERE}::test_weakness_42_43_options_and_keys_are_what_the_page_says",
}
"""A test that fails if fedmon does the same, by the number of the weakness."""
_LEFT_OUT = {"skip", "skipif", "xfail", "soak", "batch", "slow_docs"}


def left_out(node_id: str) -> set[str]:
    """Return the marks that keep a whole test, as "file::name", from running somewhere; a parameter may have them."""
    file, _, name = node_id.partition("::")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    marks = [getattr(module, "pytestmark", []), getattr(getattr(module, name), "pytestmark", [])]
    return {mark.name for each in marks for mark in (each if isinstance(each, list) else [each])} & _LEFT_OUT


def test_each_weakness_has_a_test_that_runs_everywhere() -> None:
    assert {node_id: left_out(node_id) for node_id in INDEX.values() if left_out(node_id)} == {}


def test_each_weakness_is_in_the_table_of_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| .+ \| .+ \|$", PAGE.read_text(), re.MULTILINE)

    assert list(map(int, rows)) == sorted(INDEX) == list(range(1, 44))


def table(host: RecordedHost, path: Path) -> pd.DataFrame:
    with Source([host.write(path)]) as source:
        found = perfmon.tables(source)[0]
        frame: pd.DataFrame = pa.Table.from_batches(found.batches(), found.schema).to_pandas()
    return frame


def test_weakness_13_samples_of_one_second_stay_apart_and_no_value_is_repeated(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    threads: list[Values] = [{"job_threads": 1}, {"job_threads": 2}, {"job_threads": None}]
    for number, job in enumerate(threads):
        host.tick(0.2 * number, {"host_cpu_busy_ratio": 0.5}, job)

    frame = table(host, tmp_path / "r.fmr")

    assert frame["Timestamps"].nunique() == 1
    assert [round(step.total_seconds(), 6) for step in frame["Time"].diff()[1:]] == [0.2, 0.2]
    assert frame["Number of threads"].tolist()[:2] == [1, 2]
    assert frame["Number of threads"].isna().tolist() == [False, False, True]


def test_weakness_42_43_options_and_keys_are_what_the_page_says() -> None:
    page = PAGE.read_text()
    options = re.findall(r"^  (-[^ ,]+(?:, -[^ ,]+)*)", parsers()["job"].format_help(), re.MULTILINE)
    for names in (names for names in options if "--help" not in names):
        assert f"| `{names.replace(', ', '/')}` |" in page, names
    assert "`time_stamps`" in page
    assert "`timestamps`" in page
