"""Run plans in tests as a node runs them, but for the sandbox: a real keeper and process, descriptors and frames."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from fedmon.common.ids import new_id
from fedmon.node.runs.folder import Ending, JobFolder, Reported
from fedmon.plan.parcels import unpack
from tests.node.runs.kept_jobs import KeptJobs

HEAD = "from fedmon import TrainingPlan\n"
NO_OP = HEAD + "class Plan(TrainingPlan):\n    def run(self, context):\n        return {}\n"


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


@functools.cache
def jobs() -> KeptJobs:
    """Return a launcher for all plans of this process."""
    running = contextlib.ExitStack()
    atexit.register(running.close)
    folder = running.enter_context(tempfile.TemporaryDirectory(prefix="fedmon-plans-", ignore_cleanup_errors=True))
    return running.enter_context(KeptJobs(Path(folder)))


def in_run(body: str) -> str:
    """Return a plan whose ``run(self, context)`` has this body."""
    head = HEAD + "class Plan(TrainingPlan):\n    def run(self, context):\n"
    return head + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)


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
    order = jobs().order(new_id(), level=None, minimum=None, name=name, memory_bytes=2**31, **changes)
    jobs().launcher.launch(order, source.encode(), inputs)
    folder = JobFolder(Path(order.folder))
    ending = jobs().ending(folder)
    result = folder.result.read_bytes() if ending.result_format is not None else b""
    return Ran(ending, result, [each for each in folder.events().events if isinstance(each, Reported)])
