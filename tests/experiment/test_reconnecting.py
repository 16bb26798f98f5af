"""A run whose process was killed is taken up again from its journal, and nothing is done twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from fedmon.common.errors import FolderInUseError, StorageError
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.events import Registered
from fedmon.experiment.journal import NAME, Journal
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from tests.experiment.taken_up import Sent, use_types
from tests.support.waiting import wait_until

SCRIPT = """
import sys
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.states import ResourceAction, ResourceState
from tests.experiment.taken_up import use_types

use_types()
ec = ExperimentController("trial", sys.argv[1])
print(ec.run_dir, flush=True)
guids = [ec.register_resource("test::Sent", ledger=sys.argv[2]) for _ in range(4)]
slow = ec.register_resource("test::Open", critical=False)
for one, other in zip(guids, guids[1:]):
    ec.register_condition(other, ResourceAction.START, one, ResourceState.STOPPED, time="10ms")
ec.register_condition(slow, ResourceAction.START, guids[-1], ResourceState.STOPPED, timeout="30s")
ec.set_with_conditions("note", "seen", guids[-1], guids[0], ResourceState.STOPPED)
ec.deploy()
print("deployed", flush=True)
ec.wait_finished(guids)
print("finished", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def types() -> None:
    use_types()


def begun(folder: Path, ledger: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), str(ledger)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def check_taken_up(run_dir: Path, ledger: Path) -> None:
    with ExperimentController.reconnect(run_dir) as ec:
        registered = [guid for guid in ec.resources if ec.get_resource(guid).get_rtype() == "test::Sent"]
        if len(ec.resources) == 5 and ec.snapshot.groups:
            assert ec.wait_finished(registered, timeout=30), ec.snapshot
            assert ec.wait_started(ec.resources[-1], timeout=30)
            if ec.snapshot.resources[registered[-1]].sets or ec.get(registered[-1], "note"):
                wait_until(lambda: ec.get(registered[-1], "note") == "seen", 30.0)
    lines = Counter(ledger.read_text().split()) if ledger.exists() else Counter()
    assert set(lines.values()) <= {1}, lines


def test_a_run_goes_on_where_its_process_was_killed(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    process, run_dir = begun(tmp_path, ledger)
    assert process.stdout is not None
    assert process.stdout.readline() == "deployed\n"
    wait_until(lambda: ledger.exists() and ledger.read_text().count("\n") >= 2)
    with pytest.raises(FolderInUseError):
        ExperimentController.reconnect(run_dir)
    killed(process)

    check_taken_up(run_dir, ledger)

    assert len(ledger.read_text().split()) == 4


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_whenever_a_process_is_killed_its_run_goes_on(tmp_path: Path) -> None:
    chance = random.Random(6)
    for number in range(100):
        folder = tmp_path / str(number)
        process, run_dir = begun(folder, folder / "ledger")
        at = chance.uniform(0.0, 0.25)
        try:
            process.wait(at)
        except subprocess.TimeoutExpired:
            killed(process)
        check_taken_up(run_dir, folder / "ledger")


def test_what_was_done_is_not_done_again_and_numbers_go_on(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with ExperimentController("trial", tmp_path) as ec:
        first = ec.register_resource("test::Sent", ledger=str(ledger))
        gone = ec.register_resource("test::Sent", ledger=str(ledger))
        ec.remove_resource(gone)
        ec.enable_trace(first, "log")
        ec.deploy()
        assert ec.wait_finished(first, timeout=10)
        run_dir = ec.run_dir
        kept = (Path(run_dir) / NAME).read_bytes()
    (Path(run_dir) / NAME).write_bytes(kept)  # as if it had been killed before it released

    with ExperimentController.reconnect(run_dir) as again:
        assert again.exp_id == "trial"
        assert again.run_dir == run_dir
        assert again.state(first) is ResourceState.STOPPED
        assert again.trace_enabled(first, "log")
        assert again.get(first, "ledger") == str(ledger)
        late = again.register_resource("test::Sent", ledger=str(ledger))
        again.register_condition(late, ResourceAction.START, first, ResourceState.STOPPED)
        again.deploy(late)
        assert again.wait_finished(late, timeout=10)
        assert late == 3

    assert len(ledger.read_text().split()) == 2


def test_credentials_are_given_again_for_they_were_not_written_down(tmp_path: Path) -> None:
    with ExperimentController("trial", tmp_path) as ec:
        guid = ec.register_resource("test::Sent", ledger=str(tmp_path / "ledger"), token="open sesame")
        kept = (Path(ec.run_dir) / NAME).read_bytes()
        run_dir = ec.run_dir
    assert b"sesame" not in kept
    (Path(run_dir) / NAME).write_bytes(kept)

    with ExperimentController.reconnect(run_dir, attributes={guid: {"token": "open sesame"}}) as again:
        assert again.get(guid, "token") == "open sesame"


def test_a_failure_that_was_noted_still_counts(tmp_path: Path) -> None:
    with ExperimentController("trial", tmp_path) as ec:
        guid = ec.register_resource("test::Open")
        ec.get_resource(guid).set_failed("the rack is on fire")
        run_dir = ec.run_dir
        lines = (Path(run_dir) / NAME).read_bytes().splitlines(keepends=True)
    (Path(run_dir) / NAME).write_bytes(
        b"".join(line for line in lines if b'"failed"' not in line and b"level" not in line)
    )

    with ExperimentController.reconnect(run_dir) as again:
        wait_until(lambda: again.failure_level is FailureLevel.RM_FAILURE)


def test_where_there_is_no_run_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no run to take up"):
        ExperimentController.reconnect(tmp_path / "trial" / "20260101000000000000")

    assert not (tmp_path / "trial").exists()


def test_a_line_that_was_cut_off_is_taken_out_before_more_are_written(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with Journal(path) as journal:
        journal.write([Registered(t=1.0, guid=1, rtype="app")])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-7])

    with Journal(path) as journal:
        journal.write([Registered(t=2.0, guid=2, rtype="app")])

    assert len(path.read_bytes().splitlines()) == 2
    assert os.path.getsize(path) > len(whole)
    assert Sent.get_rtype() == "test::Sent"
