"""A node by hand that publishes batches of samples as fast as it can.

``python -m bench.feeder --port 1883``; each line ``NODE COUNT FIRST`` on its standard input publishes COUNT batches of
10 samples of 60 metrics on that node's topic, from batch FIRST on, and is answered by the line ``sent``.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading

from bench.bare_parties import connected

SAMPLES = 10
METRICS = 60


def payload(node: str, batch: int) -> str:
    """Return one batch; half of its columns change from sample to sample."""
    numbers = range(batch * SAMPLES, (batch + 1) * SAMPLES)
    columns = {
        f'bench_counter_bytes_total{{device="disk{metric:02d}"}}': [
            metric * 1_000_003 + (number * 4096 if metric % 2 else 0) for number in numbers
        ]
        for metric in range(METRICS)
    }
    message = {
        "command": "sample",
        "protocol_version": "fedmon/1",
        "node_id": node,
        "boot": 1,
        "stream": "host",
        "seq": numbers[0],
        "t": [1_790_000_000.0 + number for number in numbers],
        "mono": [1000.0 + number for number in numbers],
        "m": columns,
    }
    return json.dumps(message, separators=(",", ":"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    client = connected(parser.parse_args().port, "bench-feeder")
    for line in sys.stdin:
        node, count, first = line.split()
        payloads = [payload(node, batch) for batch in range(int(first), int(first) + int(count))]
        for number, text in enumerate(payloads):
            info = client.publish(f"general/monitoring/{node}", text)
            if number % 100 == 99:
                info.wait_for_publish(30)
        info.wait_for_publish(30)
        print("sent", flush=True)
    client.disconnect()
    client.loop_stop()
    assert threading.active_count() == 1


if __name__ == "__main__":
    main()
