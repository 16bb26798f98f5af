"""The cost of a recording on the disk and in time, with data that this machine really measured.

``python -m bench.recording``: this machine is measured for ``--seconds``, and the data are repeated as long as
needed. ``bytes-live`` and ``bytes-compacted`` are an hour of ``--nodes`` nodes at 1 Hz, divided by the values in it
that are not null. ``append-hour-1`` and ``append-hour-24`` store 900 samples of
one node with fsync, as ten-sample batches, in the first and the last hour of a day, beside perfmon's way restated:
read the whole JSON, extend it, write it anew; its file before the last hour is made at once.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.line import print_line
from bench.recorded_host import RecordedHost
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from tests.support.compaction import compact

CHECKPOINT = 900
HOUR = 3600
DAY_HOURS = 24
LIVE = 10
BUDGET_LIVE, BUDGET_COMPACTED = 3.2, 1.5


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long something takes, in ms."""
    begun = clock()
    work()
    return 1000 * (clock() - begun)


def live(host: RecordedHost, node: int, first: int, length: int) -> list[Batch]:
    """Return samples as a node sends them: ten at a time."""
    return [host.batch(node, at, LIVE) for at in range(first, first + length, LIVE)]


def measure_appends(host: RecordedHost, folder: Path) -> None:
    """Store a day, a checkpoint at a time."""
    times: list[float] = []
    with Recording(folder / "day.sqlite") as recording:
        for first in range(0, DAY_HOURS * HOUR, CHECKPOINT):
            batches = live(host, 0, first, CHECKPOINT)
            times.append(timed(functools.partial(recording.append, batches)))
            while recording.maintain():
                pass
    an_hour = HOUR // CHECKPOINT
    peer_first = [timed(checkpoint) for checkpoint in perfmon(host, folder / "first.json", range(an_hour))]
    last = range(DAY_HOURS * an_hour - an_hour, DAY_HOURS * an_hour)
    peer_last = [timed(checkpoint) for checkpoint in perfmon(host, folder / "last.json", last)]
    for case, ours, peer in (
        ("append-hour-1", times[:an_hour], peer_first),
        (f"append-hour-{DAY_HOURS}", times[-an_hour:], peer_last),
    ):
        print_line("recording", case, ours=statistics.median(ours), peer=statistics.median(peer), unit="ms")


def perfmon(host: RecordedHost, path: Path, checkpoints: range) -> list[Callable[[], None]]:
    """Return perfmon's way of storing these checkpoints, those before being in the file already."""
    names = host.series
    document: dict[str, dict[str, list[Any]]] = {name: {"values": [], "timestamps": []} for name in names}
    for number in range(checkpoints.start):
        extend(document, host.batch(0, number * CHECKPOINT, CHECKPOINT))
    path.write_text(json.dumps(document, indent=4, sort_keys=True))

    def rewrite(batch: Batch) -> None:
        stored = json.loads(path.read_text())
        extend(stored, batch)
        with path.open("w") as file:
            json.dump(stored, file, indent=4, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())

    return [functools.partial(rewrite, host.batch(0, number * CHECKPOINT, CHECKPOINT)) for number in checkpoints]


def extend(document: dict[str, dict[str, list[Any]]], batch: Batch) -> None:
    """Add samples, each with a separate time, in whole seconds."""
    for name, column in batch.columns.items():
        document[name]["values"] += column
        document[name]["timestamps"] += map(int, batch.t)


def measure_hour(host: RecordedHost, folder: Path, nodes: int) -> None:
    """Store an hour of every node as it arrives, and read it back; then merge it, and read it back again."""
    path = folder / "hour.sqlite"
    with Recording(path) as recording:
        for first in range(0, HOUR - LIVE, LIVE):
            recording.append([host.batch(node, first, LIVE) for node in range(nodes)])
        values = nodes * HOUR * sum(len(c) - c.count(None) for c in host.batch(0, 0, HOUR).columns.values()) // HOUR
        print_line("recording", "bytes-live", ours=used_bytes(path) / values, peer=BUDGET_LIVE, unit="B/value")
        while recording.maintain():
            pass
        recording.append([host.batch(node, HOUR - LIVE, LIVE) for node in range(nodes)])
        compact(recording)
        print_line(
            "recording", "bytes-compacted", ours=used_bytes(path) / values, peer=BUDGET_COMPACTED, unit="B/value"
        )
    with Recording(path, read_only=True) as recording:
        begun = time.process_time()
        samples = sum(len(batch.t) for batch in recording.read())
        assert samples == nodes * HOUR
        print_line("recording", "read-everything", ours=time.process_time() - begun, peer=None, unit="s CPU")


def used_bytes(path: Path) -> int:
    """Return the bytes of all pages that hold something, the content of the log included."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=130.0, help="how long this machine is measured first")
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between two of its samples")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--metrics", type=int, default=60)
    arguments = parser.parse_args()
    host = RecordedHost(
        samples=int(arguments.seconds / arguments.interval), interval_s=arguments.interval, most=arguments.metrics
    )
    print_line("recording", "series", ours=len(host.series), peer=arguments.metrics, unit="series")
    with tempfile.TemporaryDirectory() as folder:
        measure_hour(host, Path(folder), arguments.nodes)
        measure_appends(host, Path(folder))


if __name__ == "__main__":
    main()
