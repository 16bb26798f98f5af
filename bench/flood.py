"""The cost of a flood by one researcher to the others: `python -m bench.flood [--seconds 60]`.

A process publishes pings of the researcher mallory as fast as its client can, first at no node and then at a node that
obeys them. Meanwhile another researcher pings that node. Printed are the median of these pings in milliseconds, against
that of a quiet node (budget 2x) and that of the flood at no node, and the bytes by which the node's folder grew (budget
1 MiB). On a machine with few cores flooder, broker and node share them, which the flood at no node shows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from bench.line import print_line
from fedmon.common.clock import Deadline, seconds_from_now
from fedmon.common.ids import new_id
from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

BENCH = "flood"
RATIO_BUDGET, BYTES_BUDGET = 2.0, 2**20
DEFAULTS = {"requests_per_s": 20.0}


def flood(port: int, topic: str, over: Event) -> None:
    """Publish pings at QoS 0 until told to end; in a separate process."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    head = {"command": "ping", "protocol_version": "fedmon/1", "researcher_id": "mallory", "session": "s"}
    head["expires"] = seconds_from_now(3600).isoformat()
    sent = 0
    while not over.is_set():
        sent += 1
        client.publish(topic, json.dumps(head | {"id": new_id(), "sequence": sent}).encode())
        while client._out_packet and len(client._out_packet) > 1_000 and not over.is_set():  # noqa: SLF001
            time.sleep(0.001)
    print(f"{sent} messages on {topic}", file=sys.stderr)
    client.loop_stop()


def pings_ms(fed: Federation, seconds: float) -> list[float]:
    """Ping for `seconds`, at most ten times in each second; return the milliseconds of each, timeouts included."""
    deadline, taken, lost = Deadline(seconds), [], 0
    while not deadline.passed():
        started = time.perf_counter()
        outcome = fed.ping(nodes=["ward"])["ward"]
        taken.append((time.perf_counter() - started) * 1000)
        lost += not outcome.ok
        time.sleep(0.1)
    print(f"{len(taken)} pings, {lost} without an answer", file=sys.stderr)
    return taken


def measure(seconds: float) -> None:
    """Print the lines."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "broker").mkdir()
        broker = Broker("mosquitto", Path(name) / "broker")
        folder = write_node_folder(Path(name) / "ward", url=broker.url, metrics={"enabled": False}, quota=DEFAULTS)
        with NodeProcess(folder) as node, Federation(broker.url, researcher_id="bob", folder=Path(name) / "bob") as fed:
            wait_until(lambda: fed.ping(nodes=["ward"])["ward"].ok, what=node.log)
            quiet = statistics.median(pings_ms(fed, min(seconds, 20.0)))
            elsewhere = statistics.median(_flooded(fed, broker, "general/nodes/mallory/nobody", seconds=10.0))
            before = _folder_bytes(folder)
            taken = _flooded(fed, broker, "general/nodes/mallory", seconds=seconds)
            grown = _folder_bytes(folder) - before
            found = fedmon_here("node", "status", "--json", "--dir", str(folder)).stdout
            counters = json.loads(found)["live"]["counters"]
            print({name: n for name, n in counters.items() if "served" in name or "refused" in name}, file=sys.stderr)
        broker.stop()
    print_line(BENCH, "ping-others", ours=statistics.median(taken), peer=quiet, unit="ms")
    print_line(BENCH, "ping-others-p95", ours=statistics.quantiles(taken, n=20)[-1], peer=quiet, unit="ms")
    print_line(BENCH, "ping-others-flood-at-nobody", ours=statistics.median(taken), peer=elsewhere, unit="ms")
    print_line(BENCH, "bytes-written", ours=grown, peer=BYTES_BUDGET, unit="bytes")


def _flooded(fed: Federation, broker: Broker, topic: str, *, seconds: float) -> list[float]:
    over = multiprocessing.get_context("spawn").Event()
    flooder = multiprocessing.get_context("spawn").Process(target=flood, args=(broker.port, topic, over))
    flooder.start()
    try:
        return pings_ms(fed, seconds)
    finally:
        over.set()
        flooder.join()


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "node.out")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    measure(parser.parse_args().seconds)


if __name__ == "__main__":
    main()
