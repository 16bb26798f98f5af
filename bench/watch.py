"""The share of a core that `fedmon watch` takes while many nodes send a sample a second.

``python -m bench.watch`` runs it on a terminal of 160 columns and 50 lines over 100 simulated nodes of 60 metrics, and
compares its CPU time, without that of its start, with 5 % of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import subprocess
import sys
import tempfile
import termios
import threading
import time

import paho.mqtt.client as mqtt
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from bench.echo_nodes import VERSION, answer_to, presence
from bench.line import print_line
from fedmon.broker.engine import choose_engine

BUDGET = 0.05
WARM_UP_S = 10.0


class Nodes:
    """Simulated nodes on one connection; each answers, and sends one sample a second until `close`."""

    def __init__(self, host: str, port: int, count: int) -> None:
        self._names = [f"node-{number:03d}" for number in range(count)]
        self._over = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, "bench-watch")
        self._client.on_connect = lambda client, *_: client.subscribe(
            [("general/nodes/+", 0), ("general/nodes/+/+", 1)]
        )
        self._client.on_message = self._answer
        self._client.connect(host, port)
        self._client.loop_start()
        for name in self._names:
            self._client.publish(f"general/status/{name}", json.dumps(presence(name, 1)), qos=1, retain=True)
        self._thread = threading.Thread(target=self._send, name="samples", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all of them."""
        self._over.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()

    def _answer(self, client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
        request, levels = json.loads(message.payload), message.topic.split("/")
        for name in self._names if len(levels) == 3 else levels[3:]:
            topic = f"general/researcher/{request['researcher_id']}/{request['instance']}/{name}"
            client.publish(topic, json.dumps(answer_to(name, 1, request)), qos=1)

    def _send(self) -> None:
        began, seq = time.monotonic(), 0
        while not self._over.wait(max(0.0, began + seq - time.monotonic())):
            for at, name in enumerate(self._names):
                self._client.publish(f"general/monitoring/{name}", json.dumps(sample(name, seq, at)))
            seq += 1


def sample(name: str, seq: int, at: int) -> dict[str, object]:
    """Return a batch of one sample with 60 series."""
    values = {
        "host_cpu_busy_ratio": (seq * 7 + at) % 100 / 100,
        "host_cpu_count": 64.0,
        "host_load1": 12.5,
        "host_memory_total_bytes": 2.0**38,
        "host_memory_available_bytes": 2.0**37 + seq,
        "agent_interval_seconds": 1.0,
    }
    for number in range(18):
        values[f'host_disk_read_bytes_total{{device="sd{number}"}}'] = seq * 1e6
        values[f'host_network_receive_bytes_total{{interface="eth{number}"}}'] = seq * 1e6
        values[f'host_temperature_celsius{{sensor="core{number}"}}'] = 40.0 + number
    return {
        "command": "sample", "protocol_version": VERSION, "node_id": name, "boot": 1, "stream": "host", "seq": seq,
        "t": [time.time()], "mono": [1000.0 + seq], "m": {key: [value] for key, value in values.items()}, "reasons": {},
    }  # fmt: skip


def measure(count: int, seconds: float) -> None:
    """Watch the nodes for a while, and print the share of a core."""
    with choose_engine("auto")() as broker, tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(broker.host, broker.port, count)
        master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (50, 160))
        environ = os.environ | {"TERM": "xterm-256color", "FEDMON_RESEARCHER_FOLDER": folder}
        command = [sys.executable, "-m", "fedmon", "watch", "--broker", broker.url]
        with subprocess.Popen(command, env=environ, stdin=slave, stdout=slave, stderr=slave) as watch:
            threading.Thread(target=_drained, args=(master,), daemon=True).start()
            time.sleep(WARM_UP_S)
            times = [psutil.Process(watch.pid).cpu_times()]
            time.sleep(seconds)
            times.append(psutil.Process(watch.pid).cpu_times())
            os.write(master, b"q")
        nodes.close()
    first, last = (each.user + each.system for each in times)
    print_line("watch", f"{count}-nodes-1-hz", ours=(last - first) / seconds, peer=BUDGET, unit="core")


def _drained(master: int) -> None:
    while os.read(master, 65_536):
        pass


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    measure(asked.nodes, asked.seconds)


if __name__ == "__main__":
    main()
