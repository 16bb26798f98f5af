"""The hosts of a job as real processes: `python host_child.py SAVE_DIR KEY JSON`, one process for each host in it.

Each prints one JSON line when it is done: its name and id, whether it merged, and how often.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

from fedmon.common.store.recording import Recording
from fedmon.node.job.hosts import Membership
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.merge import merge
from tests.common.store.recordings import batch
from tests.support.waiting import wait_until


def take_part(folder: JobFolder, host: dict[str, Any], begun: Barrier, dead: Event) -> None:
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
        begun.wait(60.0)
        with Recording(membership.recording) as recording:
            for seq in range(0, host.get("samples", 10), 5):
                t0 = time.time() + shift_s
                recording.append([batch(seq, 5, node=membership.node_id, boot=membership.boot, t0=t0)])
        if host.get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        assert dead.wait(60.0)
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
    forked = multiprocessing.get_context("fork")
    begun, dead = forked.Barrier(len(hosts)), forked.Event()
    processes = [forked.Process(target=take_part, args=(folder, host, begun, dead)) for host in hosts]
    for process in processes:
        process.start()
    for process, host in zip(processes, hosts, strict=True):
        if host.get("killed"):
            process.join()
    dead.set()


if __name__ == "__main__":
    main()
