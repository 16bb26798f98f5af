"""What no rule of the owner allows is refused, and the refusal says how to change that."""

from __future__ import annotations

import logging

import msgspec
import pytest

from fedmon.common.log import LEVELS
from fedmon.common.settings.values import PolicySettings
from fedmon.node.requests.policy import Policy


def _policy(**rules: object) -> Policy:
    return Policy(msgspec.convert(rules, PolicySettings), "hospital-a")


@pytest.mark.parametrize(
    ("rules", "visible"),
    [
        ({"researchers": ["res-1"]}, True),
        ({"researchers": ["res-2"]}, False),
        ({"researchers": ["*"], "datasets": {"table": ["res-1"]}}, True),
        ({"researchers": ["*"], "datasets": {"table": ["res-2"]}}, False),
        ({"researchers": ["*"], "datasets": {"table": []}}, False),
        ({"researchers": ["*"], "datasets": {"table": ["*"]}}, True),
        ({"researchers": ["*"], "datasets": {"other": ["res-2"]}}, True),
        ({"researchers": ["*"], "datasets": {"dataset_1": ["res-2"]}}, False),
        ({"researchers": ["*"], "datasets": {"dataset_1": ["res-1"], "table": []}}, True),
        ({"researchers": ["*"], "datasets": {"dataset_1": [], "table": ["res-1"]}}, False),
        ({"researchers": [], "datasets": {"table": ["res-1"]}}, False),
    ],
)
def test_a_dataset_is_listed_to_whom_its_rule_names(rules: dict[str, object], visible: bool) -> None:
    assert _policy(**rules).may_see("res-1", "dataset_1", "table") is visible


@pytest.mark.parametrize(
    ("patterns", "series", "leaves"),
    [
        (["*"], "host_cpu_busy_ratio", True),
        ([], "host_cpu_busy_ratio", False),
        (["host_*"], 'host_disk_read_bytes_total{device="sda"}', True),
        (["host_*"], 'gpu_power_watts{name="host_x"}', False),
        (["host_cpu_busy_ratio"], "host_cpu_busy_ratio_2", False),
        (["gpu_*", "host_memory_?sed_bytes"], "host_memory_used_bytes", True),
        (["HOST_*"], "host_cpu_busy_ratio", False),
    ],
)
def test_a_metric_leaves_by_its_name_before_the_labels(patterns: list[str], series: str, leaves: bool) -> None:
    policy = _policy(metrics=patterns)

    assert [policy.metric_leaves(series), policy.metric_leaves(series)] == [leaves, leaves]


@pytest.mark.parametrize(("lowest", "leaving"), [("DEBUG", LEVELS), ("WARNING", LEVELS[2:]), ("NONE", ())])
def test_a_log_record_leaves_from_the_lowest_level_on(lowest: str, leaving: tuple[str, ...]) -> None:
    level = _policy(log_level=lowest).log_level

    assert tuple(each for each in LEVELS if logging.getLevelName(each) >= level) == leaving


def test_the_owner_reads_every_rule() -> None:
    policy = _policy(researchers=["a", "b"], datasets={"x": ["a"], "y": [], "z": ["*"]}, metrics=["host_*"])

    assert policy.describe() == (
        "obeys a, b",
        "dataset x is listed to a",
        "dataset y is listed to no researcher",
        "dataset z is listed to every researcher that is obeyed",
        "other datasets are listed to every researcher that is obeyed",
        "metrics that leave: host_*",
        "logs that leave: WARNING and above",
        "output, log records and errors of jobs stay here; results and scalars leave as [release] says",
    )
