"""Starts one confined program as a keeper does, from a process with one thread, and ends with its code."""

from __future__ import annotations

import json
import os
import sys

import msgspec

from fedmon.node.cgroup import JobGroup
from fedmon.node.runs.folder import JobOrder
from fedmon.node.runs.sandbox import process


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
    limits = order.limits
    group = JobGroup(f"fedmon-test-{os.getpid()}", memory_bytes=limits.memory_bytes, processes=limits.processes + 2)
    try:
        given = {0: null, 1: 1, 2: 2, 3: question, 4: null, 5: null, 6: null}
        child = process.start(order, given, first=group.enter, memory_is_held=group.holds_memory)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    finally:
        group.remove()


main()
