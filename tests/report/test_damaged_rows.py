"""A recording whose rows were damaged is read as far as it can be, and no verb fails on it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedmon.cli import main
from fedmon.common.store.recording import Recording
from tests.report.charts.recordings import T0, recording, samples

CPU = "host_cpu_busy_ratio"


@pytest.mark.parametrize(
    "damage",
    [
        f"UPDATE batch SET last_seq = {2**62} WHERE id = 1",
        "UPDATE batch SET last_seq = -5 WHERE id = 1",
        "UPDATE batch SET low_t = 'x', high_t = 1e300 WHERE id = 1",
        "UPDATE batch SET low_t = -1e300 WHERE id = 1",
        "UPDATE mark SET t = 'x'",
        "UPDATE mark SET text = x'ff'",
        "UPDATE description SET document = '{'",
        "UPDATE description SET document = 7",
        "UPDATE description SET document = '[]'",
    ],
)
def test_what_is_whole_is_read_all_the_same(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recording(tmp_path / "a.fmr", samples({CPU: [0.5, 0.6] * 2}), samples({CPU: [0.5, 0.6] * 2}, first=10))
    with Recording(path) as store:
        store.describe("n1", 1, {"hostname": "n1"})
        store.mark("n1", 1, "host", T0 + 1, "something")
    with sqlite3.connect(path) as database:
        database.execute(damage)

    verbs = [("report", "--text"), ("export", "-o", f"{tmp_path}/a.csv")]
    if "low_t = 'x'" in damage:  # what is drawn is read by the same code, and drawing takes its time
        verbs.append(("plot", "-o", f"{tmp_path}/plots"))
    for name, *words in verbs:
        with pytest.raises(SystemExit) as ended:
            main([name, str(path), *words])
        assert ended.value.code == 0

    assert "internal error" not in capsys.readouterr().err
    assert len((tmp_path / "a.csv").read_text().splitlines()) >= 5
