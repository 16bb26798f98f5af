"""Run plans in tests as a node runs them, but for the sandbox: a real process, its descriptors and its frames."""

from __future__ import annotations

import functools
import textwrap
from typing import Any, Literal

from fedmon.node.runs.order import Ending, GivenDataset, Interpreter, Limits, Logged, Reported
from fedmon.node.runs.sandbox.interpreter import look_at
from fedmon.node.runs.trial import Trial, run_unconfined
from fedmon.plan.parcels import unpack

LIMITS = Limits(cpu_s=20, wall_s=20, memory_bytes=2**31, processes=64, output_bytes=2**24, tmp_bytes=2**24)


class Ran:
    """How a plan ended, and what it said."""

    def __init__(self, ending: Ending, result: bytes, events: list[Reported | Logged]) -> None:
        self.ending, self.result = ending, result
        self.scalars = [event for event in events if isinstance(event, Reported)]
        self.logs = [event for event in events if isinstance(event, Logged)]

    @property
    def said(self) -> tuple[str, str]:
        return self.ending.state.value, self.ending.reason

    def values(self) -> dict[str, Any]:
        assert self.ending.result_format is not None, self.ending
        return unpack(self.ending.result_format, self.result)


@functools.cache
def interpreter() -> Interpreter:
    return look_at(None)


def run_body(body: str, **given: Any) -> Ran:
    """Run a plan whose ``run(self, context)`` has this body."""
    text = "from fedmon import TrainingPlan\nclass Plan(TrainingPlan):\n    def run(self, context):\n"
    return run_source(text + textwrap.indent(textwrap.dedent(body).strip(), " " * 8), **given)


def run_source(
    source: str,
    *,
    name: str = "tried",
    limits: Limits = LIMITS,
    dataset: GivenDataset | None = None,
    arguments: dict[str, Any] | None = None,
    inputs: bytes = b"",
    inputs_format: Literal["json", "npz"] | None = None,
) -> Ran:
    events: list[Reported | Logged] = []
    trial = Trial(
        source=source.encode(),
        name=name,
        interpreter=interpreter(),
        limits=limits,
        dataset=dataset,
        arguments=arguments or {},
        inputs=inputs,
        inputs_format=inputs_format,
    )
    tried = run_unconfined(trial, events.append)
    return Ran(tried.ending, tried.result, events)
