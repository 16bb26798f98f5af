"""The hosts of a job as real processes: `python host_child.py SAVE_DIR KEY JSON`, one process for each host in it.

Each prints one JSON line when it is done: its name and id, whether it merged, and how often.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.node.job.hosts import Membership
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.merge import merge
from tests.support.waiting import wait_until


def take_part(folder: JobFolder, host: dict[str, Any], begun: int, go: int, dead: int) -> None:
    shift_s = host.get("clock_s", 0.0)
    membership = Membership(
        folder,
        host=host["host"],
        expected=host.get("expected"),
        beat_s=host.get("beat_s", 0.1),
        wall=lambda: time.time() + shift_s,
        machine=host.get("machine"),
    )
    with membership:
        membership.begin()
        os.write(begun, b"x")
        os.read(go, 1)  # ends when the other end is closed: all have begun
        with Recording(membership.recording) as recording:
            for seq in range(0, host.get("samples", 10), 5):
                t = [time.time() + shift_s + offset for offset in range(5)]
                columns: dict[str, list[float | None]] = {"host_cpu_busy_ratio": [0.5] * 5}
                node_id, boot = membership.node_id, membership.boot
                recording.append(
                    [Batch(node_id=node_id, boot=boot, stream="host", seq=seq, t=t, mono=t, columns=columns)]
                )
        if host.get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        os.read(dead, 1)  # ends when the other end is closed: killed hosts are dead
        if "waits_for" in host:
            wait_until(Path(host["waits_for"]).exists)
        merges, begin = 0, time.monotonic()
        ours = membership.end()
        decided_s = time.monotonic() - begin
        while ours:
            if host.get("killed_merging"):
                os.kill(os.getpid(), signal.SIGKILL)
            merge(folder)
            merges += 1
            ours = membership.done()
        said = {"host": membership.host, "node_id": membership.node_id, "boot": membership.boot, "merges": merges}
        said |= {"clock_offset_s": membership.clock_offset_s, "decided_s": decided_s}
    os.write(1, f"{json.dumps(said)}\n".encode())


def main() -> None:
    folder = JobFolder(Path(sys.argv[1]), None, sys.argv[2])
    hosts = json.loads(sys.argv[3])
    (begun, begins), (goes, go), (dies, dead) = os.pipe(), os.pipe(), os.pipe()
    killed: list[int] = []
    for host in hosts:
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.close(dead)
            try:
                take_part(folder, host, begins, goes, dies)
            finally:
                os._exit(0)
        if host.get("killed"):
            killed.append(pid)
    for _ in hosts:
        os.read(begun, 1)
    os.close(go)
    for pid in killed:
        os.waitpid(pid, 0)
    os.close(dead)
    for _ in range(len(hosts) - len(killed)):
        os.wait()


if __name__ == "__main__":
    main()
