"""Very many nodes in one process, each with its own connection: they answer, and send samples while there is a lease.

``python -m bench.simulated_nodes --port 1883 --nodes 5000 --hz 0.1 --prefix sim-`` prints ``ready`` when each is
subscribed. From 10 s after the first lease each sends one batch of 30 series every 10 s: 1 sample at 0.1 Hz, 10 at 1
Hz, as real nodes do if no researcher watches live. A line on standard input ends that, and the number of samples sent
is printed; requests for samples that were missed are answered until the input ends. Nothing is measured, kept in files
or run.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import selectors
import sys
import time
from typing import Any

from bench.echo_nodes import VERSION, BareNode, Message, flush, make_ready, run

BATCH_EVERY_S, SERIES, VARIANTS, PAGE = 10.0, 30, 97, 500
Columns = dict[str, list[float]]


class Tape:
    """The values of all nodes: columns of one batch, some of them in turn, also as JSON."""

    def __init__(self, hz: float) -> None:
        self.hz, self.length = hz, max(1, round(BATCH_EVERY_S * hz))
        chance, names = random.Random(1), [f"host_metric_{number}" for number in range(SERIES)]
        self.columns: list[Columns] = [
            {name: [round(chance.gauss(50, 9), 4) for _ in range(self.length)] for name in names}
            for _ in range(VARIANTS)
        ]
        self.texts = [json.dumps(one) for one in self.columns]


class SimulatedNode(BareNode):
    """A node whose samples follow from their numbers, so that each can be sent again."""

    def __init__(self, port: int, node_id: str, tape: Tape) -> None:
        super().__init__("127.0.0.1", port, node_id, commit=None)
        self._tape, self._begun_t = tape, time.time()
        self.leased, self.next_seq = False, 0

    def send_batch(self) -> None:
        """Send the next samples."""
        first, self.next_seq = self.next_seq, self.next_seq + self._tape.length
        times, text = json.dumps(self._times(first, self.next_seq)), self._tape.texts[self._variant(first)]
        self.client.publish(
            f"general/monitoring/{self.node_id}",
            f'{{"command":"sample","protocol_version":"{VERSION}","node_id":"{self.node_id}","boot":1,"stream":"host",'
            f'"seq":{first},"t":{times},"mono":{times},"m":{text}}}',
        )
        flush(self)

    def answer(self, request: Message) -> Message | None:
        """Return the reply to a request."""
        if request["command"] == "monitor":
            self.leased = self.leased or request["action"] == "start"
            if request["action"] == "resend":
                return self._page(request)
        return super().answer(request)

    def _page(self, request: Message) -> Message:
        """Return samples that were asked for again."""
        length, first = self._tape.length, request["first_seq"]
        last_end = min(request["last_seq"] + 1, self.next_seq)
        end = min(last_end, first + PAGE)
        batches: list[dict[str, Any]] = []
        for start in range(first - first % length, end, length):
            low, high = max(first, start), min(end, start + length)
            columns = self._tape.columns[self._variant(start)]
            part = {name: column[low - start : high - start] for name, column in columns.items()}
            times = self._times(low, high)
            batches.append({"seq": low, "t": times, "mono": times, "m": part})
        return {
            "command": "samples",
            "protocol_version": VERSION,
            "node_id": self.node_id,
            "success": True,
            **{key: request[key] for key in ("researcher_id", "id", "session", "sequence", "boot", "stream")},
            "batches": batches,
            "next_seq": end if end < last_end else None,
            "oldest_seq": 0,
            "last_seq": self.next_seq - 1,
        }

    def _variant(self, first: int) -> int:
        return first // self._tape.length % VARIANTS

    def _times(self, first: int, end: int) -> list[float]:
        return [round(self._begun_t + seq / self._tape.hz, 3) for seq in range(first, end)]


class Schedule:
    """Has nodes send in turn, evenly spread over 10 s, as soon as the first batch after the lease is full."""

    def __init__(self, nodes: list[SimulatedNode]) -> None:
        self._nodes, self._begun_at, self._sent = nodes, 0.0, 0

    def publish(self) -> float:
        """Send the batches that are due, and return after how many seconds the next one is."""
        if not self._nodes[-1].leased:
            return 0.05
        now, rate = time.monotonic(), len(self._nodes) / BATCH_EVERY_S
        self._begun_at = self._begun_at or now + BATCH_EVERY_S
        due = max(0, int((now - self._begun_at) * rate))
        for number in range(self._sent, due):
            self._nodes[number % len(self._nodes)].send_batch()
        self._sent = due
        return max(0.001, self._begun_at + (due + 1) / rate - time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--hz", type=float, default=0.1)
    parser.add_argument("--prefix", default="sim-")
    words = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tape = Tape(words.hz)
    nodes = [SimulatedNode(words.port, f"{words.prefix}{number:05d}", tape) for number in range(words.nodes)]
    with selectors.DefaultSelector() as selector:
        make_ready(selector, nodes)
        run(selector, nodes, Schedule(nodes).publish)
        sys.stdin.readline()
        print(sum(node.next_seq for node in nodes), flush=True)
        run(selector, nodes)


if __name__ == "__main__":
    main()
