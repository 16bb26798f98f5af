"""Killed at any moment, a recording loses nothing that was stored and can always be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.store.recording import Recording
from tests.common.store.killed import lines_until_killed
from tests.common.store.recordings import batch, flat
from tests.support.chance import seeded


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_kill_loses_at_most_the_batch_in_hand_and_never_the_file(tmp_path: Path, kills: int) -> None:
    chance = seeded()
    path, stored = tmp_path / "recording.sqlite", -1

    for _ in range(kills):
        when = {"after_lines": chance.randrange(1, 80), "after_s": chance.random() * 0.01}
        for line in lines_until_killed("recording_child", path, stored + 1, **when):  # type: ignore[arg-type]
            stored = int(line)
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
