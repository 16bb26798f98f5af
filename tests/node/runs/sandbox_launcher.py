"""Starts one confined program as a keeper does, from a process with one thread, and waits for its end."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import msgspec

from fedmon.node.runs.folder import JobOrder
from fedmon.node.runs.sandbox import process
from fedmon.node.runs.sandbox.cgroup import JobGroup


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    order = msgspec.convert(asked["order"], JobOrder)
    question = os.memfd_create("question")
    os.write(question, json.dumps(asked["question"]).encode())
    os.lseek(question, 0, os.SEEK_SET)
    null = os.open("/dev/null", os.O_RDWR)
    # What a careless launcher could leave open.
    os.dup2(os.open("/", os.O_RDONLY), 20, inheritable=True)
    os.dup2(null, 21, inheritable=True)
    codes, times = [], []
    for number in range(asked.get("repeat", 1)):
        # One for each: it may be a while until the last process of the one before is counted no more.
        name = f"fedmon-test-{os.getpid()}-{number}"
        group = JobGroup(name, memory_bytes=order.limits.memory_bytes, processes=order.limits.processes + 2)
        try:
            os.lseek(question, 0, os.SEEK_SET)
            began = time.perf_counter()
            is_held = group.holds_memory and not asked.get("bare")
            if asked.get("bare"):
                group.remove()  # nobody could afterwards when this process is killed
            given = {0: null, 1: 1, 2: 2, 3: question, 4: null, 5: null, 6: null}
            child = process.start(order, given, first=group.enter, memory_is_held=is_held)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            times.append(time.perf_counter() - began)
            told = {
                "codes": codes,
                "times": times,
                "oom": group.ended_for_memory(),
                "refused": group.refused_processes(),
                "cpu_s": group.cpu_s(),
                "peak": group.peak_memory_bytes(),
                "holds": [group.holds_memory, group.holds_processes],
                "descriptors": len(list(Path("/proc/self/fd").iterdir())),
                "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            }
        finally:
            group.remove()
    sys.stderr.write("\ntold: " + json.dumps(told) + "\n")


main()
