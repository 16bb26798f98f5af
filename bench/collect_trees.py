"""The cost of reading a job's processes: trees of 100 and 1000 `sleep`s below one shell, CPU milliseconds a sample.

``python -m bench.collect_trees``; `tree_cases` is also part of ``python -m bench.collect``. A process is born and ends
beside the tree before each sample, so that no program may rest on an unchanged list. In the case ``awake`` each of 100
processes was given a CPU since the sample before, as sleepers are cheaper for us; psutil need not find them there.
Open files we count every 10 s, and PSS and USS every 60 s: the case ``all lanes at 1 Hz`` has their share of a sample.
Peers, over the same tree:

- psutil: kept Process objects, ``children(recursive=True)`` for new ones, and for each process inside ``oneshot()``
  CPU times, memory, threads, I/O and open files.
- perfmon's method restated: new ones as with psutil; then one pass over all processes for each metric (memory, full
  memory, share of memory, CPU times and share, I/O, threads, open files). Its waits of 0.5 s a process are left out,
  and so is its list that doubles at each level of a tree.
- NEBULA's method restated: it reads the one process that it runs in, with a new Process object each time; here it is
  done for each process of the tree. Its wait of 1 s is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import psutil

from bench.line import medians, print_line
from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Collector, Roots
from fedmon.node.collectors.job.collectors import SmapsCollector
from fedmon.node.measure.jobs import JobWatches

BUDGET_MS = 1.0
"""For a sample of 100 processes."""

SIZES = (100, 1000)
_SHELL = 'i=0; while [ $i -lt "$1" ]; do sleep 600 & i=$((i+1)); done; echo ready; wait'


@contextlib.contextmanager
def tree(size: int) -> Iterator[int]:
    """Run a shell with ``size - 1`` children and return its number."""
    with subprocess.Popen(
        ["sh", "-c", _SHELL, "tree", str(size - 1)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        try:
            yield shell.pid
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()


@contextlib.contextmanager
def woken(size: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run processes that wake when something is written to them."""
    with contextlib.ExitStack() as stack:
        command, pipe = ["cat"], subprocess.PIPE
        yield [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, bufsize=0))
            for _ in range(size)
        ]


def wake(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Have each of them read a line."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"x\n")


def collectors_of(*pids: int) -> Sequence[Collector]:
    """Return the collectors that watch a job, as a node has them."""
    made: dict[str, Sequence[Collector]] = {}
    JobWatches(Roots(), made.__setitem__, made.__delitem__).add("tree", pids=pids)
    return made["job-tree"]


def ours(collectors: Sequence[Collector]) -> Callable[[], object]:
    """Return a reading of some collectors of a job."""
    return lambda: [collector.collect(Instant(t=time.time(), mono=time.monotonic())) for collector in collectors]


class Psutil:
    """The usual way, with the means that psutil offers to make it cheap."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.processes = {pid: self._root}

    def find(self) -> None:
        """Find the processes that are new and drop those that are gone."""
        children = {child.pid: child for child in self._root.children(recursive=True)}
        self.processes = {pid: self.processes.get(pid, child) for pid, child in children.items()} | {
            self._root.pid: self._root
        }

    def read(self) -> dict[str, float]:
        """Find, read and add up."""
        self.find()
        return self.add_up(self.processes.values())

    @staticmethod
    def add_up(processes: Iterable[psutil.Process]) -> dict[str, float]:
        """Read processes and add up."""
        sums = dict.fromkeys(("cpu", "rss", "vms", "threads", "read", "written", "files"), 0.0)
        for process in processes:
            with contextlib.suppress(psutil.Error), process.oneshot():
                times, memory, io = process.cpu_times(), process.memory_info(), process.io_counters()
                sums["cpu"] += times.user + times.system
                sums["rss"] += memory.rss
                sums["vms"] += memory.vms
                sums["threads"] += process.num_threads()
                sums["read"] += io.read_bytes
                sums["written"] += io.write_bytes
                sums["files"] += process.num_fds()
        return sums


class Perfmon(Psutil):
    """One pass for each metric."""

    def read(self) -> dict[str, float]:
        """Read and add up."""
        self.find()
        passes: dict[str, Callable[[psutil.Process], float]] = {
            "rss": lambda process: process.memory_info().rss,
            "vms": lambda process: process.memory_info().vms,
            "shared": lambda process: process.memory_info().shared,
            "uss": lambda process: process.memory_full_info().uss,
            "swap": lambda process: process.memory_full_info().swap,
            "share": lambda process: process.memory_percent(),
            "cpu": lambda process: process.cpu_times().user,
            "busy": lambda process: process.cpu_percent(interval=None),
            "read": lambda process: process.io_counters().read_bytes,
            "written": lambda process: process.io_counters().write_bytes,
            "reads": lambda process: process.io_counters().read_count,
            "writes": lambda process: process.io_counters().write_count,
            "threads": lambda process: process.num_threads(),
            "files": lambda process: process.num_fds(),
        }
        return {name: sum(map(one, self.processes.values())) for name, one in passes.items()}


class Nebula(Psutil):
    """A new object for each process and sample."""

    def read(self) -> dict[str, float]:
        """Read and add up."""
        self.find()
        sums = {"cpu": 0.0, "ram": 0.0, "ram_percent": 0.0}
        for pid in self.processes:
            process = psutil.Process(pid)
            sums["cpu"] += process.cpu_percent(interval=None)
            sums["ram"] += process.memory_info().rss / 1024**2
            sums["ram_percent"] += process.memory_percent()
        return sums


def cpu_ms(
    read: Callable[[], object], samples: int, *, before: Callable[[], object] = lambda: None
) -> Callable[[], float]:
    """Return a measurement of the CPU time that one sample takes."""

    def measure() -> float:
        spent = 0.0
        for _ in range(samples):
            before()
            subprocess.run(["true"], check=True)
            start = time.process_time()
            read()
            spent += time.process_time() - start
        return 1000 * spent / samples

    read()
    return measure


def tree_cases(repeats: int) -> None:
    """Measure and print every case; the peer of ``within budget`` is the budget."""
    for size in SIZES:
        samples = max(2, 1000 // size)
        with tree(size) as pid:
            collectors = collectors_of(pid)
            fast = [collector for collector in collectors if collector.name == "job-processes"]
            slower = {collector.name: collector for collector in collectors}
            memory = slower["job-smaps"]
            assert isinstance(memory, SmapsCollector)
            readings = [ours(fast), ours([slower["job-status"]]), Psutil(pid).read, Nebula(pid).read]
            mine, status, peer, nebula, smaps = medians(
                repeats,
                *(cpu_ms(read, samples) for read in readings),
                cpu_ms(ours([memory]), samples, before=memory.ending),  # it reads nothing before it is due again
            )
            perfmon = medians(max(1, repeats // 3), cpu_ms(Perfmon(pid).read, 2))[0]
            case = f"tree-{size}"
            print_line("collect", f"{case} against psutil", ours=mine, peer=peer, unit="ms CPU a sample")
            print_line("collect", f"{case} against perfmon's method", ours=mine, peer=perfmon, unit="ms CPU a sample")
            print_line("collect", f"{case} against NEBULA's method", ours=mine, peer=nebula, unit="ms CPU a sample")
            if size == SIZES[0]:
                print_line("collect", f"{case} within budget", ours=mine, peer=BUDGET_MS, unit="ms CPU a sample")
            lanes = mine + status / 10 + smaps / 60
            print_line("collect", f"{case} all lanes at 1 Hz", ours=lanes, peer=None, unit="ms CPU a sample")
    with woken(SIZES[0]) as processes:
        fast = list(collectors_of(*(process.pid for process in processes)))[:1]
        known = [psutil.Process(process.pid) for process in processes]

        def awaken() -> None:
            wake(processes)

        awake, peer = medians(
            repeats,
            cpu_ms(ours(fast), 10, before=awaken),
            cpu_ms(lambda: Psutil.add_up(known), 10, before=awaken),
        )
        print_line("collect", "tree-100 awake against psutil", ours=awake, peer=peer, unit="ms CPU a sample")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="how often each reading is measured (default: 7)")
    tree_cases(parser.parse_args().repeats)


if __name__ == "__main__":
    main()
