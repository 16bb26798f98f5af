"""The CPU time of one sample: of the host, and of trees of processes.

``python -m bench.collect``; microseconds of CPU for one sample. ``host-psutil`` compares with the same values through
psutil, ``host-raw`` with the shortest way to read and parse the same files, ``host-raw-budget`` with 1.5 times that,
and each ``host-raw-GROUP`` compares one group. ``host-all-lanes`` is a sample in which everything is due, ``host-1hz``
the mean over a minute at 1 Hz, in % of a core. Cases of process trees come from ``bench/collect_trees.py``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.line import medians, print_line
from bench.raw_host import RawHost
from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Collector, Lane
from fedmon.node.collectors.host import host_collectors
from fedmon.node.collectors.kernel import proc_collectors
from fedmon.node.collectors.portable import portable_collectors
from fedmon.node.measure.sampler import StreamReader

BENCH = "collect"
PROC = Path("/proc")
MICRO = 1e6
BUDGET_RATIO = 1.5
MINUTE_S = 60
NOW = Instant(t=0.0, mono=0.0)


def cpu_us(run: Callable[[], object], times: int = 200) -> Callable[[], float]:
    """Return a function that measures the CPU time of one run, in microseconds."""

    def measured() -> float:
        start = time.thread_time()
        for _ in range(times):
            run()
        return (time.thread_time() - start) / times * MICRO

    return measured


def devices_of(collector: Collector) -> frozenset[bytes]:
    """Return the devices that a collector reports, so that the bare reader parses the same ones."""
    return frozenset(key.split('"')[1].encode() for key in collector.collect(NOW).values)


def host_cases(repeats: int) -> None:
    """Measure the host's sample against psutil and against the bare reader."""
    files = {one.name: one for one in proc_collectors(PROC, Path("/sys"))}
    raw = RawHost(devices_of(files["disk"]), devices_of(files["network"]))
    parts = raw.parts()
    fast = {one.name: one for one in host_collectors() if one.lane is Lane.FAST}
    compared = [fast[name] for name in parts]
    reader = StreamReader(compared)
    assert len(raw.read()) >= len(reader.read(NOW).values), "the bare reader must read as much as we do"

    portable = StreamReader([one for one in portable_collectors() if one.lane is Lane.FAST])
    told = set(portable.read(NOW).values)
    same = StreamReader([one for one in compared if told & set(one.collect(NOW).values)])
    ours, peer = medians(repeats, cpu_us(lambda: same.read(NOW)), cpu_us(lambda: portable.read(NOW), 50))
    print_line(BENCH, "host-psutil", ours=ours, peer=peer, unit="us")
    ours, peer = medians(repeats, cpu_us(lambda: reader.read(NOW)), cpu_us(raw.read))
    print_line(BENCH, "host-raw", ours=ours, peer=peer, unit="us")
    print_line(BENCH, "host-raw-budget", ours=ours, peer=peer * BUDGET_RATIO, unit="us")
    values: dict[str, float] = {}
    for name, part in parts.items():
        group, bare = functools.partial(fast[name].collect, NOW), functools.partial(part, values)
        ours, peer = medians(repeats, cpu_us(group), cpu_us(bare))
        print_line(BENCH, f"host-raw-{name}", ours=ours, peer=peer, unit="us")
    lane_cases(repeats)


def lane_cases(repeats: int) -> None:
    """Measure a sample in which every lane is due, and the mean of a minute at 1 Hz."""
    collectors = host_collectors()
    costs: dict[Lane, float] = {}
    for lane in Lane:
        reader = StreamReader([one for one in collectors if one.lane is lane])
        minutes = itertools.count(0, MINUTE_S)

        def due(reader: StreamReader = reader, minutes: Iterator[int] = minutes) -> None:
            reader.read(Instant(t=0.0, mono=float(next(minutes))))

        due()
        (costs[lane],) = medians(repeats, cpu_us(due, 50))
    print_line(BENCH, "host-all-lanes", ours=sum(costs.values()), peer=None, unit="us")
    each_second_us = sum(cost / max(1.0, lane.value) for lane, cost in costs.items())
    print_line(BENCH, "host-1hz", ours=each_second_us / MICRO * 100, peer=None, unit="% of a core")


def tree_cases(repeats: int) -> None:
    """Measure trees of processes, where the file that does so is there."""
    if importlib.util.find_spec("bench.collect_trees") is not None:
        importlib.import_module("bench.collect_trees").tree_cases(repeats)


CASES: dict[str, Callable[[int], None]] = {"host": host_cases, "trees": tree_cases}
"""The measurements; each prints its own lines."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="how often each reading is measured (default: 9)")
    parser.add_argument("--only", choices=tuple(CASES), help="measure only these cases")
    arguments = parser.parse_args()
    for name, cases in CASES.items():
        if arguments.only in (None, name):
            cases(arguments.repeats)


if __name__ == "__main__":
    main()
