"""The programs that one writes by hand: a sampler that reads psutil and publishes JSON, and a listener that parses it.

``python -m bench.bare_parties sampler --port 1883`` publishes each second, or as often as ``--interval`` says; with
``--tree PID`` it reads the processes below that one, too. ``listener`` prints ``ready`` when its subscription is
granted. Both end when their standard input does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

TOPIC = "bare/monitoring"
Values = dict[str, float | None]


def read_machine(process: Any) -> Values:
    """Read through psutil the values that a node of ours reads."""
    import psutil

    times, memory, swap = psutil.cpu_times(), psutil.virtual_memory(), psutil.swap_memory()
    values: Values = {"cpu_percent": psutil.cpu_percent(), "cpu_count": psutil.cpu_count()}
    values |= {f"cpu_{mode}": getattr(times, mode) for mode in times._fields}
    values |= {f"memory_{name}": getattr(memory, name) for name in memory._fields}
    values |= {"swap_total": swap.total, "swap_used": swap.used}
    values |= dict(zip(("load1", "load5", "load15"), psutil.getloadavg(), strict=True))
    usage = psutil.disk_usage("/")
    values |= {"disk_total": usage.total, "disk_free": usage.free}
    for device, disk in psutil.disk_io_counters(perdisk=True).items():
        if not device.startswith(("loop", "ram", "zram")):
            values |= {f"{device}_{name}": getattr(disk, name) for name in disk._fields}
    for interface, network in psutil.net_io_counters(pernic=True).items():
        if interface != "lo":
            values |= {f"{interface}_{name}": getattr(network, name) for name in network._fields}
    values["uptime"] = time.time() - psutil.boot_time()
    values |= {"own_rss": process.memory_info().rss, "own_cpu": sum(process.cpu_times()[:2])}
    return values


def read_tree(root: Any) -> Values:
    """Sum the values that psutil reads of a process and of those below it."""
    import psutil

    sums: dict[str, float] = dict.fromkeys(("user", "system", "rss", "read_bytes", "write_bytes", "threads", "fds"), 0)
    processes = [root, *root.children(recursive=True)]
    for process in processes:
        try:
            with process.oneshot():
                cpu, memory, io = process.cpu_times(), process.memory_info(), process.io_counters()
                sums["user"] += cpu.user
                sums["system"] += cpu.system
                sums["rss"] += memory.rss
                sums["read_bytes"] += io.read_bytes
                sums["write_bytes"] += io.write_bytes
                sums["threads"] += process.num_threads()
                sums["fds"] += process.num_fds()
        except psutil.Error:
            continue
    values: Values = {f"tree_{name}": value for name, value in sums.items()}
    return values | {"tree_processes": len(processes)}


def connected(port: int, client_id: str) -> mqtt.Client:
    """Return a client that is connected."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client


def sample(port: int, interval_s: float, tree: int | None, ended: threading.Event) -> None:
    """Publish one JSON object an interval, on a grid."""
    import psutil

    client, process = connected(port, f"bare-sampler-{os.getpid()}"), psutil.Process()
    root = None if tree is None else psutil.Process(tree)
    due = time.monotonic()
    while not ended.wait(max(0.0, due - time.monotonic())):
        values = read_machine(process) | (read_tree(root) if root is not None else {})
        client.publish(TOPIC, json.dumps({"t": time.time(), "m": values}))
        due += interval_s
    client.disconnect()
    client.loop_stop()


def listen(port: int, ended: threading.Event) -> None:
    """Parse the messages that arrive."""
    client = connected(port, "bare-listener")
    client.on_message = lambda _client, _userdata, message: json.loads(message.payload)
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.subscribe(TOPIC)
    ended.wait()
    client.disconnect()
    client.loop_stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("party", choices=("sampler", "listener"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--tree", type=int, default=None)
    arguments = parser.parse_args()
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, name="until-stdin-ends").start()
    if arguments.party == "sampler":
        sample(arguments.port, arguments.interval, arguments.tree, ended)
    else:
        listen(arguments.port, ended)


if __name__ == "__main__":
    main()
