"""Experiments as a whole: saved, loaded, run and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.experiment import (
    ExperimentController,
    Retry,
    SFormats,
)
from fedmon.experiment.attributes import Attribute, Flags, Trace
from fedmon.experiment.document.description import even
from tests.experiment.own_types import FAILED, START, STOPPED, Short, added, own
from tests.support.waiting import wait_until


class Sent(Short):
    _rtype = "test::Sent"

    own_attributes = (
        Attribute("note", "Set by a condition.", default=""),
        Attribute("token", "A secret.", flags=Flags.Credential),
    )
    own_traces = (Trace("log", "Nothing."),)


@pytest.fixture
def ec(ec: ExperimentController) -> ExperimentController:
    first = added(ec, Sent, token="secret", retry={"deploy": Retry(times=2)}).guid
    second = ec.register_resource("test::Sent", timeouts={"start": 9.0})
    third = added(ec, own("test::Open")).guid
    ec.register_connection(first, third)
    ec.register_condition(second, START, first, STOPPED, time="10ms")
    ec.register_condition(third, START, [first, second], STOPPED, at_least=1, timeout="20s")
    for note in "0123456789":
        ec.set_with_conditions("note", note, second, first, FAILED)
    ec.set_with_conditions("note", "seen", second, first, STOPPED)
    ec.enable_trace(first, "log")
    return ec


@pytest.mark.parametrize("kind", list(SFormats))
def test_a_saved_experiment_is_loaded_and_runs(ec: ExperimentController, tmp_path: Path, kind: SFormats) -> None:
    assert ec.plot(tmp_path, "dot") == str(tmp_path / f"test_{ec.run_id}.dot")
    path = ec.save(tmp_path, kind)
    assert Path(path).name.startswith("test_20")
    assert "secret" not in Path(path).read_text()

    with ExperimentController.load(path) as again:
        assert again.run_id != ec.run_id
        assert again.trace_enabled(1, "log")
        kept, theirs = even(again.describe()).resources, even(ec.describe()).resources
        assert [each.sets for each in kept] == [each.sets for each in theirs]
        assert [one.value for one in kept[1].sets] == [*"0123456789", "seen"]
        assert [each.conditions for each in kept] == [each.conditions for each in theirs]
        assert kept[0].retry == theirs[0].retry
        assert kept[1].timeouts == {"start": 9.0}
        again.deploy()
        assert again.wait_finished([1, 2], timeout=60)
        assert again.wait_started(3, timeout=60)
        wait_until(lambda: again.get(2, "note") == "seen")
