"""What a researcher takes in: a burst of batches of metrics, each of 10 samples of 60 metrics, as fast as they come.

``python -m bench.ingest``; cases rate (samples/s, until the callback had the last one) and unaccounted (samples that
were neither handed to the callback nor counted as lost or dropped). The peer is paho with json in its callback, on the
same broker; it counts nothing, so what it did not get is unaccounted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as mqtt

from bench.bare_parties import connected
from bench.feeder import SAMPLES
from bench.line import medians, print_line
from fedmon.broker.engine import choose_engine
from fedmon.researcher.federation import Federation

WAIT_S = 60.0


class Feeder:
    """The process that publishes; each burst comes from a node of its own, so that every burst starts at sample 0."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "bench.feeder", "--port", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._bursts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def new_node(self) -> str:
        """Return the id of a node that nobody heard of."""
        self._bursts += 1
        return f"feeder-{self._bursts}"

    def send(self, node: str, count: int, *, first: int = 0) -> None:
        """Publish, and wait until everything left the feeder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{node} {count} {first}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "sent\n"


class Tally:
    """When the first and the last sample came, and how many; the burst ends with the samples of batch ``last``."""

    def __init__(self, last: int) -> None:
        self._last_seq = last * SAMPLES
        self.samples = 0
        self.first = self.end = 0.0
        self.ended = threading.Event()

    def count(self, seq: int, samples: int) -> None:
        """Take note of samples; called on one thread."""
        if not self.samples:
            self.first = time.perf_counter()
        if seq >= self._last_seq:
            self.ended.set()
            return
        self.end = time.perf_counter()
        self.samples += samples

    def rate(self) -> float:
        """Return samples a second."""
        return self.samples / (self.end - self.first)


def burst(feeder: Feeder, node: str, batches: int, tally: Tally) -> None:
    """Publish a burst and, until it is heard, the batch that tells its end."""
    feeder.send(node, batches)
    for extra in range(100):
        feeder.send(node, 1, first=batches + extra)
        if tally.ended.wait(WAIT_S / 100):
            return
    raise AssertionError("the end of the burst was not heard")


class Ours:
    """A callback of a federation."""

    def __init__(self, feeder: Feeder, federation: Federation, batches: int) -> None:
        self._feeder, self._federation, self._batches = feeder, federation, batches
        self.unaccounted = 0

    def run(self) -> float:
        """Take one burst in; return samples a second."""
        tally, node = Tally(self._batches), self._feeder.new_node()
        with self._federation.monitor(lambda sample: tally.count(sample.seq, 1), nodes=[node]) as watch:
            burst(self._feeder, node, self._batches, tally)
            left = self._batches * SAMPLES - tally.samples
            # lost: the numbers say that they were sent; dropped: they came, and the callback was too slow for them
            self.unaccounted += max(0, left - watch.lost - watch.dropped)
        return tally.rate()


class Peer:
    """paho, and json in its callback."""

    def __init__(self, feeder: Feeder, port: int, batches: int) -> None:
        self._feeder, self._batches = feeder, batches
        self.unaccounted = 0
        self._tally = Tally(batches)
        self._client = connected(port, "ingest-peer")
        self._client.on_message = self._on_message

    def _on_message(self, _client: Any, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        batch = json.loads(message.payload)
        self._tally.count(batch["seq"], len(batch["t"]))

    def run(self) -> float:
        """Take one burst in; return samples a second."""
        self._tally, node = Tally(self._batches), self._feeder.new_node()
        granted = threading.Event()
        self._client.on_subscribe = lambda *_: granted.set()
        self._client.subscribe(f"general/monitoring/{node}")
        assert granted.wait(5)
        burst(self._feeder, node, self._batches, self._tally)
        self._client.unsubscribe(f"general/monitoring/{node}")
        self.unaccounted += self._batches * SAMPLES - self._tally.samples
        return self._tally.rate()

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def measure(batches: int, rounds: int) -> None:
    """Measure both in turns."""
    with (
        tempfile.TemporaryDirectory() as folder,
        choose_engine("mosquitto")() as broker,
        Feeder(broker.port) as feeder,
        Federation(broker.url, folder=Path(folder)) as federation,
    ):
        ours, peer = Ours(feeder, federation, batches), Peer(feeder, broker.port, batches)
        one, other = medians(rounds, ours.run, peer.run)
        print_line("ingest", "rate", ours=one, peer=other, unit="samples/s")
        print_line("ingest", "unaccounted", ours=ours.unaccounted, peer=peer.unaccounted, unit="samples")
        peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    measure(arguments.batches, arguments.rounds)


if __name__ == "__main__":
    main()
