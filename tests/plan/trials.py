"""Run plans in tests as a node runs them, but for the sandbox: a real keeper and process, descriptors and frames."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmon.common.ids import new_id
from fedmon.node.runs.folder import Ending, JobFolder, Reported
from fedmon.plan.context import PlanContext
from fedmon.plan.frames import FrameChannel
from fedmon.plan.parcels import pack, unpack
from tests.node.runs.kept_jobs import kept_jobs, plan_of

HEAD = "from fedmon import TrainingPlan\n"
NO_OP = plan_of("return {}", imports="").decode()


class Ran:
    """How a plan ended, and what it said."""

    def __init__(self, ending: Ending, result: bytes, scalars: list[Reported]) -> None:
        self.ending, self.result, self.scalars = ending, result, scalars

    @property
    def said(self) -> tuple[str, str]:
        return self.ending.state.value, self.ending.reason

    def values(self) -> dict[str, Any]:
        assert self.ending.result_format is not None, self.ending
        return unpack(self.ending.result_format, self.result)


def in_run(body: str) -> str:
    """Return a plan whose ``run(self, context)`` has this body, and that imports nothing more."""
    return plan_of(body, imports="").decode()


def run_body(body: str, **given: Any) -> Ran:
    """Run a plan whose ``run`` has this body."""
    return run_source(in_run(body), **given)


def run_source(
    source: str,
    *,
    name: str = "tried",
    inputs: bytes | None = None,
    **changes: Any,
) -> Ran:
    """Run a plan, with changes to its order."""
    order = kept_jobs().order(new_id(), level=None, name=name, memory_bytes=2**31, **changes)
    kept_jobs().launcher.launch(order, source.encode(), inputs)
    folder = JobFolder(Path(order.folder))
    ending = kept_jobs().ending(folder)
    result = folder.result.read_bytes() if ending.result_format is not None else b""
    return Ran(ending, result, [each for each, _ in folder.events() if isinstance(each, Reported)])


@contextlib.contextmanager
def heard(*, pause_s: float = 0.0) -> Iterator[tuple[PlanContext, FrameChannel, bytearray]]:
    """Give the context and channel of a plan, and the bytes that came through it: all of them after the block."""
    read_end, write_end = os.pipe()
    received = bytearray()

    def receive() -> None:
        with open(read_end, "rb", buffering=0) as file:
            while piece := file.read(4096):
                received.extend(piece)
                time.sleep(pause_s)

    receiving = threading.Thread(target=receive)
    receiving.start()
    channel = FrameChannel(write_end)
    context = PlanContext(job_id="j", node_id="n", dataset=None, arguments={}, inputs={}, channel=channel)
    try:
        yield context, channel, received
    finally:
        os.close(write_end)
        receiving.join()


def packed(values: Any) -> tuple[str, bytes]:
    """Return the format of a parcel of values, and its bytes."""
    made = pack(values)
    return made.format, b"".join(made.pieces)
