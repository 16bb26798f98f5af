"""The cost of `fedmon job` for the measured command, in wall time.

``python -m bench.job``; ratios to the bare command. Cases: ``cpu`` is one loop of arithmetic, ``forks`` a program that
starts another one again and again. A machine's speed drifts, so each measured run is short and lies between two bare
ones: its ratio is to the mean of these neighbours, and the figure is the median of all. ``*-noise`` is the same for
bare runs between bare ones; half of those ratios are within ``*-noise-half-within``, and the figure itself within about
``*-noise-of-median``: a cost below that cannot be distinguished from none.

``*-command`` is the command's own time, as the command itself takes it, when it has run for a while; its loss
before, while the tool loads, is a fixed time, as is all that the run takes beside the command: together they are
``*-start-and-end``, in seconds of wall time, and ``*-cpu`` all that the run takes more in seconds of CPU time.
``*-whole`` is put together from both, for a command that takes ``--whole`` seconds. The peer is the method of perfmon,
restated from its behaviour: a process beside the command that reads every process of its tree once a second through
psutil, each for half a second.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.line import print_line

BENCH = "job"
BUDGETS = {"cpu": 1.01, "forks": 1.03}
_CPU = """
import sys, time
def work(rounds):
    began, count = time.monotonic(), 0
    for each in range(rounds):
        count += each * each % 7
    return time.monotonic() - began
print(work(int(sys.argv[1])), work(int(sys.argv[2])))
"""
_FORKS = """
import os, sys, time
def work(rounds):
    began = time.monotonic()
    for each in range(rounds):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return time.monotonic() - began
print(work(int(sys.argv[1])), work(int(sys.argv[2])))
"""
PROGRAMS = {"cpu": _CPU, "forks": _FORKS}
PAUSE_S, EACH_S = 1.0, 0.5
FIRST_PART = 2
"""The first part is shorter than the compared part by this factor."""


class Times(NamedTuple):
    """One run, in seconds: wall time, the command's own times for its first part and for the rest, and all CPU time."""

    whole_s: float
    first_s: float
    command_s: float
    cpu_s: float


def command(case: str, rounds: int) -> list[str]:
    """Return the command line of a case."""
    return [sys.executable, "-S", "-E", "-c", PROGRAMS[case], str(rounds // FIRST_PART), str(rounds)]


def timed(argv: Sequence[str]) -> Times:
    """Run a command line."""
    before, began = _cpu_s(), time.monotonic()
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    whole_s = time.monotonic() - began
    first_s, command_s = map(float, done.stdout.split())
    return Times(whole_s, first_s, command_s, _cpu_s() - before)


def with_fedmon(argv: Sequence[str]) -> Times:
    """Run a command below `fedmon job` at 1 Hz."""
    tool = [str(Path(sys.executable).with_name("fedmon")), "job", "-i", "1"]
    with tempfile.TemporaryDirectory() as folder:
        return timed([*tool, "-d", folder, "--", *argv])


def with_perfmon(argv: Sequence[str]) -> Times:
    """Run a command beside a process that reads its tree as perfmon does."""
    before, began = _cpu_s(), time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    watcher = subprocess.Popen([sys.executable, "-m", "bench.job", "--watch", str(process.pid)])
    said, _ = process.communicate()
    watcher.wait()
    whole_s = time.monotonic() - began
    first_s, command_s = map(float, said.split())
    return Times(whole_s, first_s, command_s, _cpu_s() - before)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    while (took := timed(command(case, rounds)).command_s) < min(1.0, seconds):
        rounds *= 4
    return max(1, int(rounds * seconds / took))


def compare(case: str, *, seconds: float, rounds: int, whole_s: float) -> None:
    """Measure one case and print its lines."""
    argv = command(case, calibrated(case, seconds))
    runs: dict[str, Callable[[Sequence[str]], Times]] = {
        "fedmon": with_fedmon, "perfmon": with_perfmon, "bare": timed
    }  # fmt: skip
    names = [*runs]
    taken: dict[str, list[Times]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    beside = [timed(argv)]
    for number in range(rounds):
        # In turns, and each of them first as often as the others.
        for name in names[number % 3 :] + names[: number % 3]:
            taken[name].append(runs[name](argv))
            beside.append(timed(argv))
            neighbours = (beside[-2].command_s + beside[-1].command_s) / 2
            ratios[name].append(taken[name][-1].command_s / neighbours)
    bare_s = statistics.median(one.command_s for one in beside)
    command_of = {name: statistics.median(found) for name, found in ratios.items()}
    first_s = statistics.median(one.first_s for one in beside)
    rest_of = {name: statistics.median(one.whole_s - one.command_s - first_s for one in taken[name]) for name in names}
    whole_of = {
        name: (command_of[name] * whole_s + rest_of[name]) / (whole_s + rest_of["bare"]) for name in names
    }  # fmt: skip
    for what, found in (("whole", whole_of), ("command", command_of)):
        print_line(BENCH, f"{case}-{what}", ours=found["fedmon"], peer=found["perfmon"], unit="x bare")
        print_line(BENCH, f"{case}-{what}-budget", ours=found["fedmon"], peer=BUDGETS[case], unit="x bare")
    low, _, high = statistics.quantiles(ratios["bare"], n=4) if rounds > 1 else (1.0, 1.0, 1.0)
    print_line(BENCH, f"{case}-noise", ours=command_of["bare"], peer=None, unit="x bare")
    print_line(BENCH, f"{case}-noise-half-within", ours=(high - low) / 2, peer=None, unit="x bare")
    # The median of n ratios is as uncertain as one of them, divided by the root of n.
    print_line(
        BENCH, f"{case}-noise-of-median", ours=1.2533 * (high - low) / 1.349 / rounds**0.5, peer=None, unit="x bare"
    )
    print_line(BENCH, f"{case}-start-and-end", ours=rest_of["fedmon"], peer=rest_of["bare"], unit="s")
    cpu_of = {name: statistics.median(one.cpu_s for one in taken[name]) for name in names}
    print_line(BENCH, f"{case}-cpu", ours=cpu_of["fedmon"] - cpu_of["bare"], peer=None, unit="s")
    print_line(BENCH, f"{case}-bare", ours=bare_s, peer=None, unit="s")


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long the bare command takes")
    parser.add_argument("--rounds", type=int, default=12, help="how often each way is measured")
    parser.add_argument("--whole", type=float, default=25.0, help="the command's length for *-whole")
    parser.add_argument("--case", choices=[*PROGRAMS])
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return
    os.environ.pop("FEDMON_JOB_ID", None)
    for case in PROGRAMS if options.case is None else (options.case,):
        compare(case, seconds=options.seconds, rounds=options.rounds, whole_s=options.whole)


if __name__ == "__main__":
    main()
