"""Which change of the settings makes collectors anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.common.settings.broker import broker_from_url
from fedmon.common.settings.values import MetricsSettings, NodeSettings, PerfSettings
from fedmon.node.collectors.base import Lane, Reading
from fedmon.node.collectors.plugins import GROUP, Context
from fedmon.node.measure.survey import Instruments, survey
from tests.support.machine_tree import write_tree

SETTINGS = NodeSettings(id="a", broker=broker_from_url("mqtt://127.0.0.1"))


def instruments(settings: NodeSettings = SETTINGS) -> Instruments:
    made = Instruments(settings, counts=dict, times=dict, job_cpu=lambda _now: {}, job_pids=dict)
    made.host()
    return made


def outdated(**changes: object) -> bool:
    return instruments().follow(msgspec.structs.replace(SETTINGS, **changes))


@pytest.mark.parametrize(
    "pace", [{"interval_s": 1.0}, {"min_interval_s": 0.5}, {"cost_budget_ratio": 0.5}, {"enabled": False}]
)
def test_another_pace_leaves_the_collectors_and_what_they_counted_as_they_are(pace: Mapping[str, Any]) -> None:
    assert not outdated(metrics=MetricsSettings(**pace))


@pytest.mark.parametrize("what", [{"per_core": True}, {"plugins": ("a",)}, {"proc_root": Path("/tree")}])
def test_what_is_measured_otherwise_is_measured_by_new_collectors(what: Mapping[str, Any]) -> None:
    assert outdated(metrics=MetricsSettings(**what))
    assert outdated(perf=PerfSettings(enabled=True))


def test_another_tree_of_files_is_another_machine(tmp_path: Path) -> None:
    other = msgspec.structs.replace(SETTINGS, metrics=MetricsSettings(proc_root=tmp_path, sys_root=tmp_path))
    followed = instruments()
    here = followed.hardware()

    followed.follow(other)

    assert followed.hardware() == instruments(other).hardware() != here


def test_a_collector_that_fails_in_an_unforeseen_way_is_named_and_the_others_are_surveyed(tmp_path: Path) -> None:
    write_tree(tmp_path, {"loadavg": "1 2 3 1/2 3\n", "pressure/cpu": "newer avg10=0 avg60=0 avg300=0 total=0\n"})
    reasons = surveyed(MetricsSettings(proc_root=tmp_path, sys_root=tmp_path))

    assert (reasons["pressure"], reasons["host_load1"]) == ("failed: KeyError: b'newer'", None)


def surveyed(metrics: MetricsSettings) -> dict[str, str | None]:
    found = survey(msgspec.structs.replace(SETTINGS, metrics=metrics))
    return {each.name: each.reason for group in found.groups for each in group.metrics}


class Undeclared:
    """A plug-in whose collector opens its source when it is probed, and gives a series that it did not declare."""

    name, lane = "cups", Lane.FAST

    def __init__(self, _context: Context) -> None: ...

    def probe(self) -> dict[str, str | None]:
        self.cups = 1
        return {}

    def collect(self, _now: Instant) -> Reading:
        return Reading({"host_cups": self.cups})


def test_a_plug_in_that_gives_what_it_did_not_declare_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = f"[{GROUP}]\ncups = {__name__}:Undeclared\n"
    write_tree(tmp_path / "cups-1.dist-info", {"METADATA": "Name: cups\nVersion: 1\n", "entry_points.txt": entry})
    monkeypatch.syspath_prepend(tmp_path)

    reason = str(surveyed(MetricsSettings(proc_root=tmp_path, plugins=("cups",)))["plugin-cups"])

    assert reason.startswith("failed: the plug-in cups gave a series without declaring its metric")
