"""What a run of `fedmon job` left: read as its users would, through the recording."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from fedmon.report.source import Host, Source


class Results:
    """The merged recording of one job."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self.recording = folder / f"{key}.fmr"
        with Source([self.recording]) as source:
            self.hosts: dict[str, Host] = {host.name: host for host in source.hosts}
            self.lost = [
                lost for stream in source.streams for lost in source.lost(stream.node_id, stream.stream, stream.boot)
            ]

    def job(self, host: str) -> dict[str, Any]:
        """Return what is known of the job on one host."""
        return self.hosts[host].jobs[self.key]

    def values(self, series: str, host: str) -> list[float]:
        """Return the values of one series of the job on one host, in order, without those missing."""
        found: list[float] = []
        with Source([self.recording]) as source:
            node_id = self.hosts[host].node_id
            for block in source.blocks(node_id=node_id, stream=f"job-{self.key}", series=lambda name: name == series):
                if series in block.columns:
                    column = block.columns[series]
                    found += column[~np.isnan(column)].tolist()
        return found

    def last(self, series: str, host: str) -> float:
        """Return the last value of one series of the job on one host."""
        values = self.values(series, host)
        assert values, f"{series} was not measured for job {self.key} on {host}; {self.log()}"
        return values[-1]

    def cpu_s(self, host: str) -> float:
        """Return the seconds of CPU time that the job used on one host."""
        return sum(self.last(f"job_cpu_{mode}_seconds_total", host) for mode in ("user", "system"))

    def log(self) -> str:
        """Return all logs of the run."""
        return "\n".join(f"{file.name}: {file.read_text()}" for file in sorted(self.folder.rglob("*.log")))


def is_whole(recording: Path) -> bool:
    """Tell whether a recording passes SQLite's own check."""
    with sqlite3.connect(f"file:{recording}?mode=ro", uri=True) as database:
        return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
