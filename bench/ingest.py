"""How fast a researcher takes samples in, against bare paho and json, and whether every sample is accounted for.

``python -m bench.ingest`` sends 2,000 batches of 10 samples of 60 metrics as fast as a separate publisher can.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from bench.echo_nodes import VERSION, Message, without_delay
from bench.line import print_line
from fedmon.broker.engine import choose_engine
from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.watch import LiveSample, Watch

SAMPLES = 10
METRICS = 60
NODE = "busy"
TOPIC = f"general/monitoring/{NODE}"
TURNS = 5


def batch(seq: int, length: int) -> bytes:
    """Return a batch whose numbers look like those of a real host."""
    times = [1_700_000_000 + seq + number for number in range(length)]
    columns = {
        f"host_metric_{metric}_total": [round(1000 * math.sin(metric + at) + at, 3) for at in range(seq, seq + length)]
        for metric in range(METRICS)
    }
    message: Message = {"command": "sample", "protocol_version": VERSION, "node_id": NODE, "boot": 1, "stream": "host"}
    return json.dumps(message | {"seq": seq, "t": times, "mono": times, "m": columns}).encode()


def publish(port: int, count: int) -> None:
    """Send every batch at each line on standard input, then the last one again and again until the next line."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, NODE)
    client.on_socket_open = without_delay
    client.connect("127.0.0.1", port)
    client.loop_start()
    payloads = [batch(number * SAMPLES, SAMPLES) for number in range(count)]
    last = batch(count * SAMPLES, 1)
    print("ready", flush=True)
    for _ in sys.stdin:
        for payload in payloads:
            client.publish(TOPIC, payload, qos=0)
        told = threading.Event()
        reader = threading.Thread(target=lambda told=told: (sys.stdin.readline(), told.set()))
        reader.start()
        while not told.wait(0.02):
            client.publish(TOPIC, last, qos=0)
        print("done", flush=True)


class Publisher:
    """The publisher's process; one turn at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def turn(self, finished: Callable[[], bool]) -> None:
        """Let it send everything, and go on with the last until that has arrived."""
        self._line()
        tick = threading.Event()
        while not finished():
            tick.wait(0.005)
        self._line()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "done\n"

    def _line(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def publisher(port: int, count: int) -> Iterator[Publisher]:
    """Run the publisher."""
    command = [sys.executable, "-m", "bench.ingest", "--publish", "--port", str(port), "--batches", str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Publisher(process)
        process.stdin.close()
        process.wait(10)


class Count:
    """How many samples came, between the first and the last of them."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.samples = 0
        self.first_at = self.last_at = 0.0

    def add(self, number: int, seq: int) -> None:
        """Count samples, the first of which is ``seq``."""
        now = time.perf_counter()
        self.first_at = self.first_at or now
        if not self.last_at:
            self.samples += number
            if seq >= self._last:
                self.last_at = now

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / (self.last_at - self.first_at)


def ours(broker_url: str, folder: str, sender: Publisher, last: int) -> tuple[float, Watch]:
    """Take everything in by `Federation.monitor`."""
    count = Count(last)

    def on_sample(sample: LiveSample) -> None:
        count.add(1, sample.seq)

    with Federation(broker_url, folder=folder) as federation, federation.monitor(on_sample) as watch:
        federation.ping(timeout_s=0.1)
        sender.turn(lambda: count.last_at > 0)
        return count.rate, watch


def bare(port: int, sender: Publisher, last: int) -> float:
    """Take everything in by hand."""
    count = Count(last)

    def on_message(_client: Any, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        document = json.loads(message.payload)
        count.add(len(document["t"]), document["seq"])

    client = mqtt.Client(CallbackAPIVersion.VERSION2, "bare")
    subscribed = threading.Event()
    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe("general/monitoring/#", 0)
    assert subscribed.wait(5)
    sender.turn(lambda: count.last_at > 0)
    client.disconnect()
    client.loop_stop()
    return count.rate


def measure(count: int) -> None:
    """Compare in turns."""
    last = count * SAMPLES
    with (
        tempfile.TemporaryDirectory() as folder,
        choose_engine("mosquitto")() as broker,
        publisher(broker.port, count) as sender,
    ):
        rates: list[tuple[float, float]] = []
        lost = unaccounted = 0
        for _ in range(TURNS):
            peer = bare(broker.port, sender, last)
            rate, watch = ours(broker.url, folder, sender, last)
            rates.append((rate, peer))
            # Nothing is sent again here, so pending samples will not come.
            missing = watch.lost + watch.dropped + watch.pending
            lost = max(lost, missing)
            unaccounted = max(unaccounted, abs(last + 1 - watch.delivered - missing))
    middle = sorted(rates, key=lambda pair: pair[0] / pair[1])[len(rates) // 2]
    print_line("ingest", "samples", ours=middle[0], peer=middle[1], unit="samples/s")
    print_line("ingest", "lost-or-dropped", ours=lost, peer=None, unit="samples")
    print_line("ingest", "unaccounted", ours=unaccounted, peer=None, unit="samples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--publish", action="store_true", help="be the publisher (used by this command itself)")
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    if arguments.publish:
        publish(arguments.port, arguments.batches)
    else:
        measure(arguments.batches)


if __name__ == "__main__":
    main()
