"""CPU and delay of `record --to` at 30,000 values a second, into a real VictoriaMetrics.

``python -m bench.store``: this process appends batches of 10 samples of 30 values to a recording, those of 1,000
streams each ten seconds. A second process sends them on. ``cpu`` is its share of a core and ``delay`` how long after it
was stored the last sample of each second is in the store; both include reading the recording.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from bench.line import print_line
from fedmon.common.metrics.sample import Batch
from fedmon.common.settings.values import StoreSettings
from fedmon.common.store.recording import Recording
from fedmon.researcher.samples.store import StorePush, import_url
from tests.support.store import Store

STREAMS, SERIES, SAMPLES = 1000, 30, 10
BUDGET_CPU_PERCENT, BUDGET_DELAY_S = 8.0, 1.0
WARM_UP_S = 5


def main() -> None:
    """Print CPU, delay and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--push", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.push:
        _push(*words.push)
        return
    if shutil.which("victoria-metrics") is None:
        sys.exit("bench.store needs victoria-metrics")
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), words.seconds)


def _push(path: str, url: str) -> None:
    push = StorePush(Path(path), import_url(url), StoreSettings(), is_online=dict)
    sys.stdin.read()
    print(json.dumps({"complete": push.stop(), "values": push.counts.values}), flush=True)


def _measure(folder: Path, seconds: int) -> None:
    store, path = Store(folder / "victoria"), folder / "store.fmr"
    chance = random.Random(1)
    walks = [[round(chance.uniform(0, 100), 4) for _ in range(SAMPLES)] for _ in range(997)]
    with Recording(path) as recording:
        command = [sys.executable, "-m", "bench.store", "--push", str(path), store.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pushing:
            process, delays, cpu_s = psutil.Process(pushing.pid), [], 0.0
            begun, appended = time.monotonic(), 0
            for second in range(seconds + WARM_UP_S):
                if second == WARM_UP_S:
                    cpu_s = sum(process.cpu_times()[:2])
                batches = [_batch(node, second, walks) for node in range(second % 10, STREAMS, 10)]
                recording.append(batches)
                stored_at = time.monotonic()
                appended += len(batches) * SERIES * SAMPLES
                while _taken(store) < appended:
                    time.sleep(0.05)
                delays.append(time.monotonic() - stored_at)
                recording.maintain()
                time.sleep(max(0.0, begun + second + 1 - time.monotonic()))
            cpu_s = sum(process.cpu_times()[:2]) - cpu_s
            elapsed_s, rss = time.monotonic() - begun - WARM_UP_S, process.memory_info().rss
            output, _ = pushing.communicate()
    store.kill()
    values = json.loads(output)["values"]
    expected = (seconds + WARM_UP_S) * STREAMS // 10 * SERIES * SAMPLES
    print_line("store", "cpu", ours=100 * cpu_s / elapsed_s, peer=BUDGET_CPU_PERCENT, unit="% of a core")
    print_line("store", "delay", ours=statistics.median(delays), peer=BUDGET_DELAY_S, unit="s")
    print_line("store", "values-taken", ours=values, peer=expected, unit="values")
    print_line("store", "rss", ours=rss / 1e6, peer=None, unit="MB")


def _batch(node: int, second: int, walks: list[list[float]]) -> Batch:
    times = [time.time() - SAMPLES + number for number in range(SAMPLES)]
    columns: dict[str, list[float | None]] = {
        f'host_metric_{number}{{cpu="{number}"}}': [*walks[(node * SERIES + number + second) % len(walks)]]
        for number in range(SERIES)
    }
    seq = second // 10 * SAMPLES
    return Batch(node_id=f"n{node}", boot=1, stream="host", seq=seq, t=times, mono=times, columns=columns)


def _taken(store: Store) -> float:
    """Return how many values the store has taken, as it counts them."""
    with urllib.request.urlopen(f"{store.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith('vm_rows_inserted_total{type="vmimport"'))


if __name__ == "__main__":
    main()
