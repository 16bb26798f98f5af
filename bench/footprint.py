"""The cost of fedmon while it does nothing else: import, memory, and the CPU of a node that measures each second.

``python -m bench.footprint``; cases import (s), rss-node and rss-researcher (MB), agent-cpu and agent-cpu-live (% of
a core). The peers are bare programs on paho that run beside ours on the same broker: importing paho and json; a
sampler that reads psutil and publishes JSON each second; a listener that parses it. In agent-cpu-live a researcher
watches, so that the node sends each sample at once; the peer always does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.bare_parties import TOPIC, connected
from bench.line import medians, print_line
from fedmon.broker.engine import choose_engine
from fedmon.researcher.federation import Federation

MEGABYTE = 1_000_000
RESEARCHER = """
import sys, fedmon
with fedmon.Federation(sys.argv[1], folder=sys.argv[2]) as federation:
    federation.ping()
    print("ready", flush=True)
    sys.stdin.read()
"""
IMPORTS = {
    "ours": "import fedmon; fedmon.Federation",
    "peer": "import json, paho.mqtt.client",
}


def import_s(statement: str) -> float:
    """Time an import in a fresh interpreter, without the start of the interpreter."""
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


@contextlib.contextmanager
def running(*arguments: str, ready: bool = False, **environ: str) -> Iterator[psutil.Process]:
    """Run a child of Python until its standard input ends, or until it is told to stop."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | environ,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if ready:
            assert process.stdout.readline() == "ready\n", f"{arguments} did not start"
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.stdin.close()
            process.wait(10)


@contextlib.contextmanager
def node(url: str, folder: Path) -> Iterator[psutil.Process]:
    """Run a node that measures each second and obeys all researchers."""
    init = [sys.executable, "-m", "fedmon", "node", "init", "--dir", str(folder), "--broker", url, "--id", "measured"]
    subprocess.run(init, check=True, capture_output=True)
    start = ("-m", "fedmon", "node", "start", "--dir", str(folder))
    with running(*start, FEDMON_METRICS_INTERVAL_S="1", FEDMON_POLICY_RESEARCHERS="*") as process:
        yield process


class Arrivals:
    """Waits until each of some topics was heard."""

    def __init__(self, port: int, *topics: str) -> None:
        self._left, self._all = set(topics), threading.Event()
        self._client = connected(port, "footprint")
        self._client.on_message = lambda _client, _userdata, message: self._heard(message.topic)
        self._client.subscribe([(topic, 0) for topic in topics])

    def _heard(self, topic: str) -> None:
        self._left.discard(topic)
        if not self._left:
            self._all.set()

    def wait(self, timeout_s: float) -> None:
        """Wait for all of them, then disconnect."""
        assert self._all.wait(timeout_s), f"nothing was heard on {', '.join(self._left)}"
        self._client.disconnect()
        self._client.loop_stop()


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds that a process took so far."""
    times = process.cpu_times()
    return times.user + times.system


def percent_of_a_core(seconds: float, *processes: psutil.Process) -> list[float]:
    """Return the CPU share of each process while all of them run."""
    before, start = [cpu_s(process) for process in processes], time.monotonic()
    threading.Event().wait(seconds)
    lasted_s = time.monotonic() - start
    return [100 * (cpu_s(process) - earlier) / lasted_s for process, earlier in zip(processes, before, strict=True)]


def measure(seconds: float) -> None:
    """Measure every case."""
    ours, peer = medians(9, lambda: import_s(IMPORTS["ours"]), lambda: import_s(IMPORTS["peer"]))
    print_line("footprint", "import", ours=ours, peer=peer, unit="s")
    with tempfile.TemporaryDirectory() as name, choose_engine("mosquitto")() as broker:
        folder = Path(name)
        arrivals = Arrivals(broker.port, "general/monitoring/measured", TOPIC)
        bare = ("-m", "bench.bare_parties", "sampler", "--port", str(broker.port))
        with node(broker.url, folder / "node") as agent, running(*bare) as sampler:
            arrivals.wait(30)
            ours, peer = percent_of_a_core(seconds, agent, sampler)
            print_line("footprint", "agent-cpu", ours=ours, peer=peer, unit="% of a core")
            with (
                Federation(broker.url, folder=folder / "watcher") as federation,
                federation.monitor(lambda _sample: None, interval_s=1.0),
            ):
                ours, peer = percent_of_a_core(seconds / 3, agent, sampler)
            print_line("footprint", "agent-cpu-live", ours=ours, peer=peer, unit="% of a core")
            ours, peer = (process.memory_info().rss / MEGABYTE for process in (agent, sampler))
            print_line("footprint", "rss-node", ours=ours, peer=peer, unit="MB")
            listener = ("-m", "bench.bare_parties", "listener", "--port", str(broker.port))
            researcher = ("-c", RESEARCHER, broker.url, str(folder / "researcher"))
            with running(*researcher, ready=True) as one, running(*listener, ready=True) as other:
                ours, peer = (process.memory_info().rss / MEGABYTE for process in (one, other))
            print_line("footprint", "rss-researcher", ours=ours, peer=peer, unit="MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long CPU is watched (default: 300)")
    measure(parser.parse_args().seconds)


if __name__ == "__main__":
    main()
