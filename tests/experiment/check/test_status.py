"""The status of a run says what is known of its process, and no more."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedmon.experiment import ExperimentController
from fedmon.experiment.check.status import followed, heading
from fedmon.experiment.journal import Follower


def test_a_run_is_not_called_interrupted_if_the_system_does_not_list_its_locks(tmp_path: Path) -> None:
    with ExperimentController("own", tmp_path) as ec:
        ec.register_resource("local::Process", command=["true"])
        copied = Path(shutil.copytree(ec.run_dir, tmp_path / "own" / "copied"))

    no_locks = tmp_path / "locks"
    with Follower(copied) as unfinished, Follower(ec.run_dir) as released:
        known, shown = followed(unfinished, 0.0), followed(unfinished, 0.0, locks=no_locks)
        ended = followed(released, 0.0, locks=no_locks)

    assert [each.status for each in (known, shown, ended)] == ["left", "unknown", "ended"]
    assert [each.may_run for each in (known, shown, ended)] == [False, True, False]
    assert "unknown whether a process still runs it" in heading(shown)
