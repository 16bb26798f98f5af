"""A day of ten nodes, exported in every format within the budget for memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_day_of_ten_nodes_is_exported_in_every_format(tmp_path: Path) -> None:
    from bench.export import SUFFIXES, measured, recorded
    from bench.recorded_host import RecordedHost

    path = tmp_path / "day.fmr"
    recorded(path, RecordedHost(samples=100, interval_s=0.2, most=60), nodes=10, seconds=86_400, as_it_came=False)

    for name, suffix in SUFFIXES.items():
        file = tmp_path / f"x{suffix}"
        _, _, megabytes, _ = measured([sys.executable, "-m", "fedmon", "export", str(path), "-o", str(file)])
        if name == "csv":
            assert megabytes <= 500
            done = subprocess.run(["wc", "-l", file], capture_output=True, text=True, check=True)
            assert int(done.stdout.split()[0]) == 864_001
        if name == "parquet":
            assert pq.ParquetFile(file).metadata.num_rows == 864_000
        file.unlink()
