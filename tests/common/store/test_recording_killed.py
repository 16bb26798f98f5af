"""Killed at any moment, a recording loses nothing that was stored and can always be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.common.clock import Deadline
from fedmon.common.store.recording import Recording
from tests.common.store.recordings import batch, flat
from tests.support.chance import seeded

CHILD = Path(__file__).with_name("recording_child.py")


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_kill_loses_at_most_the_batch_in_hand_and_never_the_file(tmp_path: Path, kills: int) -> None:
    chance = seeded()
    path, stored = tmp_path / "recording.sqlite", -1

    for _ in range(kills):
        stored = run_and_kill(path, stored + 1, after_lines=chance.randrange(1, 80), after_s=chance.random() * 0.01)
        with Recording(path, read_only=True) as recording:
            found = flat(recording.read(stream="host", first_seq=max(0, stored - 700)))
            twin = flat(recording.read(stream="user", first_seq=max(0, stored - 700)))
        last = found[-1][3]
        # The batch in hand may be stored without having been said so; both of its streams or neither.
        assert last in (stored, stored + 10)
        assert [one[3] for one in twin] == [one[3] for one in found]
        assert found == flat([batch(found[0][3], len(found))])
        stored = last

    with Recording(path) as recording:
        assert recording.aside is None
        assert flat(recording.read(stream="host")) == flat([batch(0, stored + 1)])


def run_and_kill(path: Path, first: int, *, after_lines: int, after_s: float) -> int:
    """Return the last sample that the process said was stored."""
    last = first - 1
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(path), str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert child.stdout is not None
    with child.stdout:
        for count, line in enumerate(child.stdout, start=1):
            last = int(line)
            if count == after_lines:
                deadline = Deadline(after_s)
                while not deadline.passed():
                    pass  # a moment within the next append or merge, too short to wait for
                child.kill()
    assert child.wait(60) == -9
    return last
