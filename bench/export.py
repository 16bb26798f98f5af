"""The cost of exporting a day of ten nodes: seconds, and the most memory of all processes together.

``python -m bench.export``: this machine is measured for ``--seconds``, and the result is repeated as long as
needed, into a recording that is merged as one of a day is (`--as-it-came` keeps rows of ten samples). Each case is a
separate `fedmon export`: ``csv`` and the other formats with the series as they were read, ``csv-rates`` with the
rates that are there by default. The peer is pandas, writing the same table to CSV, once it has it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.line import print_line
from bench.recorded_host import RecordedHost
from fedmon.common.store.recording import Recording
from tests.support.compaction import compact

DAY_S = 86_400
AT_ONCE = 7_200
LIVE = 10
SUFFIXES = {"csv": ".csv", "parquet": ".parquet", "feather": ".feather", "orc": ".orc", "hdf5": ".h5", "pickle": ".pkl"}
BUDGET_S, BUDGET_MB = 4.0, 500.0
LOOK_EVERY_S = 0.02
PANDAS = """
import sys, time
from fedmon.report import Source, frame
with Source([sys.argv[1]]) as source:
    table = frame(source, rates=False)
begun = time.perf_counter()
table.to_csv(sys.argv[2], index=False)
print(time.perf_counter() - begun)
"""


def recorded(path: Path, host: RecordedHost, *, nodes: int, seconds: int, as_it_came: bool) -> None:
    """Store the samples of every node."""
    with Recording(path) as recording:
        for node in range(nodes):
            for first in range(0, seconds, AT_ONCE):
                batch = host.batch(node, first, min(AT_ONCE, seconds - first))
                if as_it_came:
                    for seq in range(batch.seq, batch.last_seq + 1, LIVE):
                        recording.append([batch.part(seq, seq + LIVE - 1)])
                else:
                    recording.append([batch])
        if not as_it_came:
            compact(recording)


def measured(command: list[str]) -> tuple[float, float, float, str]:
    """Run a command; return its seconds, those of CPU, the most MB of it and its children, and its output."""
    begun, before = time.perf_counter(), cpu_s()
    most = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        tree = psutil.Process(process.pid)
        while True:
            try:
                output, _ = process.communicate(timeout=LOOK_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                most = max(most, memory(tree))
        seconds = time.perf_counter() - begun
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return seconds, cpu_s() - before, most / 1e6, output


def cpu_s() -> float:
    """Return the CPU time of all children that ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory(tree: psutil.Process) -> int:
    """Return the resident memory of a process and its children; pages that they share count for each."""
    total = 0
    for process in (tree, *tree.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=130.0, help="how long this machine is measured first")
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between two of its samples")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--metrics", type=int, default=60)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--as-it-came", action="store_true", help="do not merge the rows of the recording")
    parser.add_argument("--recording", type=Path, help="use this one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.recording
        if path is None:
            path = Path(folder) / "day.fmr"
            host = RecordedHost(
                samples=int(arguments.seconds / arguments.interval),
                interval_s=arguments.interval,
                most=arguments.metrics,
            )
            recorded(
                path,
                host,
                nodes=arguments.nodes,
                seconds=int(arguments.hours * 3600),
                as_it_came=arguments.as_it_came,
            )
        cases = [(name, name, ["--no-rates"]) for name in SUFFIXES]
        for case, name, options in [*cases, ("csv-rates", "csv", [])]:
            file = Path(folder) / f"{case}{SUFFIXES[name]}"
            command = [sys.executable, "-m", "fedmon", "export", str(path), "-o", str(file), "--json", *options]
            seconds, cpu, megabytes, _ = measured(command)
            print_line("export", case, ours=seconds, peer=BUDGET_S, unit="s")
            print_line("export", f"{case}-cpu", ours=cpu, peer=None, unit="s CPU")
            print_line("export", f"{case}-rss", ours=megabytes, peer=BUDGET_MB if name == "csv" else None, unit="MB")
            print_line("export", f"{case}-size", ours=file.stat().st_size / 1e6, peer=None, unit="MB")
            file.unlink()
        _, _, megabytes, printed = measured([sys.executable, "-c", PANDAS, str(path), str(Path(folder) / "peer.csv")])
        print_line("export", "pandas-csv", ours=float(printed), peer=None, unit="s")
        print_line("export", "pandas-csv-rss", ours=megabytes, peer=None, unit="MB")


if __name__ == "__main__":
    main()
