"""One researcher over very many simulated nodes: CPU, memory, ping, traffic, and whether each sample is there.

``python -m bench.scale [--nodes 1000 10000] [--hz 0.1 1] [--doors watch record store] [--seconds 60]``. The text of
`simulated_nodes` lists the work that the nodes do and leave out. A few processes hold all of them and share the machine
with broker and researcher, so the time of a ping includes their work on the answers.

``watch`` is `Federation.monitor` (only up to 0.1 Hz: a live watch gets each sample at once), ``record`` is
`Federation.record`, and ``store`` the same with ``to=`` a VictoriaMetrics. Each case runs in a separate process. CPU
is a share of one core over ``--seconds``; ``machine`` is that of all processes, simulation included. Traffic is the
data that the broker reads from and writes to its connections: MQTT packets without the headers of TCP and TLS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.line import print_line
from bench.outage import Order, wait
from bench.simulated_nodes import SERIES
from fedmon.broker.engine import choose_engine
from fedmon.common.clock import Deadline
from fedmon.common.store.recording import Recording
from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.record import Record
from fedmon.researcher.samples.watch import Watch
from tests.support.store import Store

DOORS = ("watch", "record", "store")
MOST_LIVE_HZ = 0.1
WARM_UP_S, READY_S, DRAIN_S = 25.0, 180.0, 120.0
NODES_A_PROCESS = 5_000
BUDGETS = {"watch-10000x0.1hz-researcher-cpu": 25.0, "watch-10000x0.1hz-researcher-rss": 150.0}


class Simulation:
    """Processes full of nodes."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def stop_sending(self) -> int:
        """End the flow of samples, and return how many were sent."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return sum(int(_line(process)) for process in self._processes)


@contextlib.contextmanager
def simulation(port: int, count: int, hz: float) -> Iterator[Simulation]:
    """Run ``count`` nodes."""
    with contextlib.ExitStack() as stack:
        processes = []
        for first in range(0, count, NODES_A_PROCESS):
            part = str(min(NODES_A_PROCESS, count - first))
            command = [sys.executable, "-m", "bench.simulated_nodes", "--port", str(port), "--hz", str(hz)]
            command += ["--nodes", part, "--prefix", f"sim-{first // NODES_A_PROCESS}-"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert _line(process) == "ready\n"
        yield Simulation(processes)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def measure(door: str, count: int, hz: float, seconds: float) -> None:
    """Measure one case, and print its lines."""
    found: dict[str, tuple[float, str]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(choose_engine("mosquitto")())
        nodes = stack.enter_context(simulation(broker.port, count, hz))
        parties = {"researcher": psutil.Process(), "broker": psutil.Process(broker.pid)}
        store = None
        if door == "store":
            store = Store(folder / "victoria", options=["-memory.allowedBytes=1GB"])
            stack.callback(store.kill)
            parties["store"] = psutil.Process(store.pid)
        federation = stack.enter_context(Federation(broker.url, folder=folder, timeout_s=60))
        wait(lambda: len(federation.nodes().online) == count, READY_S, f"{count} nodes online")
        order, path, to = Order(), folder / "store.fmr", store.url if store else None
        consumer: Watch | Record
        if door == "watch":
            consumer = federation.monitor(order.take, interval_s=1 / hz)
        else:
            consumer = federation.record(path, interval_s=1 / hz, to=to)
        threading.Event().wait(WARM_UP_S)
        found |= _used(parties, seconds)
        found |= _pinged(federation, count)
        found |= {f"{name}-rss": (one.memory_info().rss / 1e6, "MB") for name, one in parties.items()}

        sent = nodes.stop_sending()
        deadline, tick = Deadline(DRAIN_S), threading.Event()
        while _arrived(consumer) < sent and not deadline.passed():
            tick.wait(1.0)  # more often, the looking itself would take a core with very many streams
        consumer.close()
        arrived, doubled = (_arrived(consumer), order.duplicated) if isinstance(consumer, Watch) else _stored(path)
        found["sent"] = sent, "samples"
        found["lost"], found["doubled"] = (sent - arrived + doubled, "samples"), (doubled, "samples")
        if isinstance(consumer, Record):
            found["disk"] = path.stat().st_size / (sent * SERIES), "B a value, while recording"
            if store is not None and consumer.store is not None:
                found["store-waiting"] = consumer.store.counts.waiting, "samples"
                store.kill()
                kept = sum(one.stat().st_size for one in (folder / "victoria").rglob("*") if one.is_file())
                found["store-disk"] = kept / (sent * SERIES), "B a value"
    for what, (ours, unit) in found.items():
        case = f"{door}-{count}x{hz:g}hz-{what}"
        print_line("scale", case, ours=ours, peer=BUDGETS.get(case), unit=unit)


def _used(parties: dict[str, psutil.Process], seconds: float) -> dict[str, tuple[float, str]]:
    """Return the CPU that parties take from now on, that of the machine, and the broker's traffic."""

    def read() -> tuple[dict[str, float], int, int]:
        traffic = parties["broker"].io_counters()
        cpu = {name: sum(process.cpu_times()[:2]) for name, process in parties.items()}
        return cpu, traffic.read_chars, traffic.write_chars

    begun, (cpu, reads, writes) = time.monotonic(), read()
    psutil.cpu_percent()
    threading.Event().wait(seconds)
    machine, (cpu_after, reads_after, writes_after) = psutil.cpu_percent() * (psutil.cpu_count() or 1), read()
    elapsed_s = time.monotonic() - begun
    return {
        **{f"{name}-cpu": (100 * (cpu_after[name] - cpu[name]) / elapsed_s, "% of a core") for name in parties},
        "machine": (machine, "% of a core"),
        "broker-reads": ((reads_after - reads) / elapsed_s / 1000, "kB/s"),
        "broker-writes": ((writes_after - writes) / elapsed_s / 1000, "kB/s"),
    }


def _pinged(federation: Federation, count: int) -> dict[str, tuple[float, str]]:
    """Return how long pings take until each node has answered, while samples come in."""
    took_ms = []
    for _ in range(20 if count <= 1_000 else 7):
        begun = time.perf_counter()
        assert len(federation.ping().ok) == count
        took_ms.append(1000 * (time.perf_counter() - begun))
    return {"ping": (statistics.median(took_ms), "ms, p50"), "ping-slowest": (max(took_ms), "ms")}


def _arrived(consumer: Watch | Record) -> int:
    return consumer.delivered if isinstance(consumer, Watch) else consumer.counts.stored


def _stored(path: Path) -> tuple[int, int]:
    """Return how many samples a recording holds, and how many of them twice."""
    ends: dict[str, int] = {}
    stored = doubled = 0
    with Recording(path, read_only=True) as recording:
        for batch in recording.read():
            doubled += max(0, ends.get(batch.node_id, -1) - batch.seq + 1)
            ends[batch.node_id] = batch.last_seq
            stored += len(batch.t)
    return stored, doubled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--hz", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=["watch", "record"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.case:
        measure(*words.case)
        return
    cases = [(door, nodes, hz) for nodes in words.nodes for hz in words.hz for door in words.doors]
    for door, nodes, hz in cases:
        if door != "watch" or hz <= MOST_LIVE_HZ:
            case = json.dumps([door, nodes, hz, words.seconds])
            subprocess.run([sys.executable, "-m", "bench.scale", "--case", case], check=True)


if __name__ == "__main__":
    main()
