"""The cost of a whole node while it measures: CPU in % of a core, and memory.

``python -m bench.agent [--seconds 300]``. Every node is the real daemon on a real broker, recording and publishing.
Cases host-1hz, host-10hz, tree100-1hz (with a job of 100 processes) and rss. The peer of each is a bare agent on
psutil and paho that reads and publishes the same at the same pace; all run side by side. Ten samples a second are
twice the limit of an owner's settings; it is lifted for the measurement alone. Programs that are installed, glances and
prometheus-node-exporter (scraped each second), are measured beside them, with the same node as peer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.bare_parties import TOPIC
from bench.footprint import MEGABYTE, Arrivals, percent_of_a_core, running
from bench.line import print_line
from fedmon.broker.engine import choose_engine
from tests.support.ports import free_port

PROCESSES = 100
TREE = f"""
import subprocess, sys
children = [subprocess.Popen(["sleep", "infinity"]) for _ in range({PROCESSES - 1})]
print("ready", flush=True)
sys.stdin.read()
for child in children:
    child.kill()
    child.wait()
"""


DAEMON = """
import os, sys
from pathlib import Path
import msgspec
from fedmon.common.settings.sources import load_node
from fedmon.node.measure.sampler import MIN_INTERVAL_S
from fedmon.node.daemon import Daemon
from fedmon.node.folder import NodeFolder
folder, interval_s = NodeFolder.open(Path(sys.argv[1])), float(sys.argv[2])
settings = load_node(folder.path, os.environ)
least_s = min(interval_s, MIN_INTERVAL_S)
metrics = msgspec.structs.replace(settings.metrics, interval_s=interval_s, min_interval_s=least_s)
with folder.hold("daemon"):
    Daemon(folder, msgspec.structs.replace(settings, metrics=metrics)).run()
"""


@contextlib.contextmanager
def node(url: str, folder: Path, *, interval_s: float) -> Iterator[psutil.Process]:
    """Run a node that measures at its own pace."""
    init = [sys.executable, "-m", "fedmon", "node", "init", "--dir", str(folder), "--broker", url, "--id", folder.name]
    subprocess.run(init, check=True, capture_output=True)
    with running("-c", DAEMON, str(folder), str(interval_s)) as process:
        yield process


def watch_job(folder: Path, pid: int) -> None:
    """Tell a node to measure the processes below one, as an owner does."""
    command = ["-m", "fedmon", "node", "job", "watch", "bench", "--pid", str(pid), "--dir", str(folder)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)


@contextlib.contextmanager
def others(ended: threading.Event) -> Iterator[dict[str, psutil.Process]]:
    """Run the monitors of other projects that are installed here."""
    with contextlib.ExitStack() as stack:
        found: dict[str, psutil.Process] = {}
        if glances := shutil.which("glances"):
            command = [glances, "--quiet", "--time", "1", "--export", "csv", "--export-csv-file", os.devnull]
            found["glances"] = stack.enter_context(_program(command))
        if exporter := shutil.which("prometheus-node-exporter"):
            port = free_port()
            address = f"127.0.0.1:{port}"
            found["node-exporter"] = stack.enter_context(_program([exporter, f"--web.listen-address={address}"]))
            scraper = threading.Thread(target=_scrape, args=(f"http://{address}/metrics", ended), name="scraper")
            scraper.start()
            stack.callback(scraper.join)
            stack.callback(ended.set)
        yield found


@contextlib.contextmanager
def _program(command: list[str]) -> Iterator[psutil.Process]:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as one:
        try:
            yield psutil.Process(one.pid)
        finally:
            one.terminate()


def _scrape(url: str, ended: threading.Event) -> None:
    while not ended.wait(1.0):
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as response:
            response.read()


def measure(seconds: float) -> None:
    """Measure every case side by side."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        broker = stack.enter_context(choose_engine("mosquitto")())
        folder, bare = Path(name), ("-m", "bench.bare_parties", "sampler", "--port", str(broker.port))
        topics = [f"general/monitoring/{one}" for one in ("host-1hz", "host-10hz", "tree100-1hz")]
        arrivals = Arrivals(broker.port, TOPIC, *topics)
        tree = stack.enter_context(running("-c", TREE, ready=True))
        pairs = {
            "host-1hz": (node(broker.url, folder / "host-1hz", interval_s=1.0), running(*bare)),
            "host-10hz": (node(broker.url, folder / "host-10hz", interval_s=0.1), running(*bare, "--interval", "0.1")),
            "tree100-1hz": (
                node(broker.url, folder / "tree100-1hz", interval_s=1.0),
                running(*bare, "--tree", str(tree.pid)),
            ),
        }
        started = {case: (stack.enter_context(ours), stack.enter_context(peer)) for case, (ours, peer) in pairs.items()}
        arrivals.wait(60)
        watch_job(folder / "tree100-1hz", tree.pid)
        beside = stack.enter_context(others(threading.Event()))
        everybody = [*(process for pair in started.values() for process in pair), *beside.values()]
        shares = dict(zip(everybody, percent_of_a_core(seconds, *everybody), strict=True))
        for case, (ours, peer) in started.items():
            print_line("agent", case, ours=shares[ours], peer=shares[peer], unit="% of a core")
        first, bare_first = started["host-1hz"]
        for program, process in beside.items():
            print_line(
                "agent", f"host-1hz beside {program}", ours=shares[first], peer=shares[process], unit="% of a core"
            )
        sizes = [process.memory_info().rss / MEGABYTE for process in (first, bare_first)]
        print_line("agent", "rss", ours=sizes[0], peer=sizes[1], unit="MB")
        with_tree = started["tree100-1hz"][0].memory_info().rss / MEGABYTE
        print_line("agent", "rss with a job of 100", ours=with_tree, peer=sizes[1], unit="MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long CPU is watched (default: 300)")
    measure(parser.parse_args().seconds)


if __name__ == "__main__":
    main()
