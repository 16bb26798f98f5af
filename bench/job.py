"""What measuring a command with `fedmon job` costs it, in wall time.

``python -m bench.job``; ratios to the bare command, medians of pairs run in turns. Cases: ``cpu`` is one loop of
arithmetic, ``forks`` a shell that starts a program again and again. ``*-whole`` is the time from the start of
``fedmon job -i 1 -- COMMAND`` to its end, its own start and end included; ``*-command`` is the command's own time, as
the command itself takes it, and ``*-start-and-end`` the difference of both, in seconds. The peer is the method of
perfmon, restated from what it does: a process beside the command that reads every process of its tree once a second
through psutil, each for half a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from bench.line import print_line

BENCH = "job"
BUDGETS = {"cpu": 1.01, "forks": 1.03}
_CPU = """
import sys, time
began, count = time.monotonic(), 0
for each in range(int(sys.argv[1])):
    count += each * each % 7
print(time.monotonic() - began)
"""
_FORKS = """
import os, sys, time
began = time.monotonic()
for each in range(int(sys.argv[1])):
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
print(time.monotonic() - began)
"""
PROGRAMS = {"cpu": _CPU, "forks": _FORKS}
PAUSE_S, EACH_S = 1.0, 0.5

Times = tuple[float, float]


def command(case: str, rounds: int) -> list[str]:
    """Return the command line of a case."""
    return [sys.executable, "-S", "-E", "-c", PROGRAMS[case], str(rounds)]


def timed(argv: Sequence[str]) -> Times:
    """Run a command line and return its wall time, and what the command says of its own."""
    began = time.monotonic()
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    return time.monotonic() - began, float(done.stdout)


def with_fedmon(argv: Sequence[str]) -> Times:
    """Run a command below `fedmon job` at 1 Hz."""
    tool = [str(Path(sys.executable).with_name("fedmon")), "job", "-i", "1"]
    with tempfile.TemporaryDirectory() as folder:
        return timed([*tool, "-d", folder, "--", *argv])


def with_perfmon(argv: Sequence[str]) -> Times:
    """Run a command beside a process that reads its tree as perfmon does."""
    began = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    watcher = subprocess.Popen([sys.executable, "-m", "bench.job", "--watch", str(process.pid)])
    said, _ = process.communicate()
    watcher.wait()
    return time.monotonic() - began, float(said)


def watch(pid: int) -> None:
    """Read a process and its children as perfmon does, until it has ended."""
    root = psutil.Process(pid)
    while True:
        began = time.monotonic()
        try:
            if root.status() == psutil.STATUS_ZOMBIE:
                return
            for each in [root, *root.children(recursive=True)]:
                each.cpu_percent(interval=EACH_S)
                each.cpu_times(), each.memory_info(), each.memory_full_info(), each.memory_percent()
                each.io_counters(), each.num_threads(), each.num_fds()
            psutil.cpu_percent(), psutil.net_io_counters()
        except psutil.NoSuchProcess:
            if not psutil.pid_exists(pid):
                return
        try:
            root.wait(max(0.0, PAUSE_S - (time.monotonic() - began)))
            return
        except psutil.TimeoutExpired:
            continue


def calibrated(case: str, seconds: float) -> int:
    """Return how many rounds take so long."""
    rounds = 200
    while (took := timed(command(case, rounds))[1]) < min(1.0, seconds):
        rounds *= 4
    return max(1, int(rounds * seconds / took))


def compare(case: str, *, seconds: float, pairs: int) -> None:
    """Measure one case and print its lines."""
    argv = command(case, calibrated(case, seconds))
    runs: dict[str, Callable[[Sequence[str]], Times]] = {
        "bare": timed, "fedmon": with_fedmon, "perfmon": with_perfmon
    }  # fmt: skip
    taken: dict[str, list[Times]] = {name: [] for name in runs}
    for number in range(pairs):
        # In turns, and each of them first as often as the others: the machine's speed drifts.
        names = [*runs][number % 3 :] + [*runs][: number % 3]
        for name in names:
            taken[name].append(runs[name](argv))
    for place, what in enumerate(("whole", "command")):
        ours, peer = (
            statistics.median(one[place] / bare[place] for one, bare in zip(taken[name], taken["bare"], strict=True))
            for name in ("fedmon", "perfmon")
        )
        print_line(BENCH, f"{case}-{what}", ours=ours, peer=peer, unit="x bare")
        print_line(BENCH, f"{case}-{what}-budget", ours=ours, peer=BUDGETS[case], unit="x bare")
    ours, peer = (statistics.median(whole - own for whole, own in taken[name]) for name in ("fedmon", "bare"))
    print_line(BENCH, f"{case}-start-and-end", ours=ours, peer=peer, unit="s")
    print_line(BENCH, f"{case}-bare", ours=statistics.median(one[0] for one in taken["bare"]), peer=None, unit="s")


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--case", choices=[*PROGRAMS])
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return
    os.environ.pop("FEDMON_JOB_ID", None)
    for case in PROGRAMS if options.case is None else (options.case,):
        compare(case, seconds=options.seconds, pairs=options.pairs)


if __name__ == "__main__":
    main()
