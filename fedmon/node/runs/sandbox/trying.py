"""Trying a level: a process that runs the self-test confined, and says what was wrong; nothing where all is well."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError
from fedmon.common.wire.runs import Level
from fedmon.node.runs.order import Interpreter, JobOrder, Limits
from fedmon.node.runs.sandbox import confined

_TIMEOUT_S = 20.0
_LIMITS = Limits(cpu_s=10, wall_s=10, memory_bytes=2**30, processes=16, output_bytes=65_536, tmp_bytes=2**20)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be tried."""

    level: Level
    devices: list[str]
    interpreter: Interpreter


def problem_with(question: Question) -> str:
    """Run a small program confined that looks what it can do; return what is wrong, empty where nothing is."""
    with tempfile.TemporaryDirectory(prefix="fedmon-try-") as folder:
        runtime, job = Path(folder, "runtime"), Path(folder, "job")
        main = runtime / confined.MAIN
        main.parent.mkdir(parents=True)
        main.write_bytes(Path(__file__).with_name("self_test.py").read_bytes())
        job.mkdir(mode=0o700)
        secret = job / "secret"
        secret.write_text("secret")
        order = JobOrder(
            job_id="self-test",
            node_id="self-test",
            folder=str(job),
            sha256="0" * 64,
            name="self-test",
            interpreter=question.interpreter,
            runtime=str(runtime),
            limits=_LIMITS,
            level=question.level,
            minimum=question.level,
            trace_bytes=65_536,
            devices=question.devices,
        )
        facts = {"level": question.level, "secret": str(secret), "outside": os.getpid()}
        try:
            said = _run(order, question.level, json.dumps(facts))
        except (OSError, FedmonError) as error:
            return str(error)
    return "" if said == "as it should be" else said or "it ended without a word"


def _run(order: JobOrder, level: Level, question: str) -> str:
    """Return what the program prints until it ends."""
    asked, said = os.memfd_create("question"), os.pipe()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.write(asked, question.encode())
    os.lseek(asked, 0, os.SEEK_SET)
    prepared = confined.command(order, level, {0: null, 1: said[1], 2: said[1], 3: asked, 4: null, 5: null, 6: null})
    try:
        child = prepared.start()
    finally:
        prepared.close()
        for each in (asked, null, said[1]):
            os.close(each)
    deadline, text = Deadline(_TIMEOUT_S), b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(said[0], selectors.EVENT_READ)
            while not deadline.passed() and len(text) < 65_536:
                if selector.select(deadline.left_s()):
                    piece = os.read(said[0], 4096)
                    if not piece:
                        break
                    text += piece
    finally:
        os.close(said[0])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return text.decode(errors="replace").strip()[-500:]


if __name__ == "__main__":
    sys.stdout.write(problem_with(msgspec.json.decode(sys.stdin.buffer.read(), type=Question)))
