"""The cost of an outage of the broker: samples lost, doubled or out of order, and how long the backlog takes to drain.

``python -m bench.outage [--nodes 50] [--seconds 600] [--rate 1]``: real nodes in separate processes measure
``rate`` times a second, a researcher watches all of them in order and keeps a store; then mosquitto is stopped for
``seconds``. Cases lost, duplicated and reordered (samples of the ordered watch and holes of the store), drain (from the
broker being back until the last node's backlog is delivered in order and stored; budget 60 s), and reconnect, the
part of it until the last node is back. At most 200 nodes and an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.line import print_line
from fedmon.common.clock import Deadline
from fedmon.common.errors import NotConnectedError
from fedmon.common.store.recording import Recording
from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.record import Record
from fedmon.researcher.samples.watch import LiveSample
from tests.common.store.recordings import missing
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, write_node_folder

DRAIN_BUDGET_S = 60.0
MOST_NODES, MOST_SECONDS = 200, 3600.0
FIRST_SAMPLES = 3


class Order:
    """Counts samples that come twice or too early on the ordered watch, and how far each node is."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, str], tuple[int, int]] = {}
        self.newest_t: dict[str, float] = {}
        self.duplicated = self.reordered = self.skipped = 0

    def take(self, sample: LiveSample) -> None:
        """Take the next sample of the watch."""
        key, number = (str(sample.node_id), sample.stream), (sample.boot, sample.seq)
        last = self.last.get(key)
        if last is not None and number == last:
            self.duplicated += 1
        elif last is not None and number < last:
            self.reordered += 1
        elif last is not None and number != (last[0], last[1] + 1) and number[0] == last[0]:
            self.skipped += number[1] - last[1] - 1
        self.last[key] = number
        if sample.stream == "host":
            self.newest_t[str(sample.node_id)] = sample.t


def wait(condition: Callable[[], object], timeout_s: float, what: str) -> float:
    """Wait until something is true, and return how long that took. Raises TimeoutError."""
    deadline, tick = Deadline(timeout_s), threading.Event()
    while not condition():
        if deadline.passed():
            raise TimeoutError(f"{what} did not come true within {timeout_s:g} s")
        tick.wait(0.02)
    return deadline.elapsed_s()


def holes(path: Path) -> int:
    """Return how many numbers the store lacks between its first and its last sample of each stream."""
    lacking = 0
    with Recording(path, read_only=True) as recording:
        for one in recording.extents():
            gaps = missing(recording, one.oldest_seq, one.last_seq, of=(one.node_id, one.boot, one.stream))
            lacking += sum(high - low + 1 for low, high in gaps)
    return lacking


def measure(count: int, outage_s: float, rate: float) -> None:
    """Run one outage."""
    interval_s = 1 / rate
    names = [f"node-{number:03d}" for number in range(count)]
    order = Order()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        broker = Broker("mosquitto", folder / "broker")
        stack.callback(broker.stop)
        for node_id in names:
            metrics = {"interval_s": interval_s, "min_interval_s": 0.2}
            stack.enter_context(NodeProcess(write_node_folder(folder / node_id, url=broker.url, metrics=metrics)))
        federation = stack.enter_context(Federation(broker.url, researcher_id="bench", folder=folder / "bench"))
        watch = stack.enter_context(federation.monitor(order.take, interval_s=interval_s, ordered=True))
        store = folder / "store.fedmon"
        record: Record = stack.enter_context(federation.record(store, interval_s=interval_s))
        started_s = 10 + 3.0 * count + FIRST_SAMPLES * interval_s
        wait(lambda: len(order.newest_t) == count, started_s, f"a sample of each of {count} nodes")
        wait(lambda: min(number for _, number in order.last.values()) >= FIRST_SAMPLES, started_s, "the first samples")

        broker.stop()
        threading.Event().wait(outage_s)
        broker.start()
        back = Deadline(0.0)
        back_t = time.time()

        def drained() -> bool:
            positions = record.positions
            return all(
                order.newest_t[node_id] > back_t and one["host"].t > back_t
                for node_id, one in ((str(node_id), one) for node_id, one in positions.items())
            )

        def all_back() -> bool:
            with contextlib.suppress(NotConnectedError):
                return len(federation.ping(timeout_s=0.5).ok) == count
            return False

        reconnect_s = wait(all_back, 600.0, "every node being back")
        wait(lambda: len(record.positions) == count and drained(), 600.0, "the end of the backlog")
        drain_s = back.elapsed_s()
        # A sample sent twice would come by now: wait for one more sample of every node.
        wait(lambda: min(order.newest_t.values()) > back_t + drain_s + interval_s, 60.0, "one more sample")
        record.stop()
        lost = watch.lost + order.skipped + record.lost + holes(store)
        duplicated = order.duplicated
        refilled = watch.refilled
        size = record.counts.size_bytes
    print_line("outage", "lost", ours=lost, peer=None, unit="samples")
    print_line("outage", "duplicated", ours=duplicated, peer=None, unit="samples")
    print_line("outage", "reordered", ours=order.reordered, peer=None, unit="samples")
    print_line("outage", "drain", ours=drain_s, peer=DRAIN_BUDGET_S, unit="s")
    print_line("outage", "reconnect", ours=reconnect_s, peer=None, unit="s")
    print_line("outage", "refilled", ours=refilled, peer=None, unit="samples")
    print_line("outage", "store", ours=size / 1e6, peer=None, unit="MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=1.0, help="samples a second")
    arguments = parser.parse_args()
    if not 0 < arguments.nodes <= MOST_NODES or not 0 < arguments.seconds <= MOST_SECONDS:
        parser.error(f"1 to {MOST_NODES} nodes and at most {MOST_SECONDS:.0f} s are measured")
    if not 0 < arguments.rate <= 5:
        parser.error("a node measures at most 5 times a second")
    measure(arguments.nodes, arguments.seconds, arguments.rate)


if __name__ == "__main__":
    main()
