"""What can be wrong with a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from fedmon.experiment.errors import ExperimentError

ProblemKind = Literal[
    "unknown-resource", "unknown-type", "condition-cycle", "group-deadlock", "failed-resource", "impossible-quorum",
    "one-sided-connection", "refused-connection", "collector-without-trace", "skipped-state", "not-deployed",
    "not-stopped", "not-failed", "not-measured", "may-not-come", "missing-part", "wrong-attribute", "missing-dataset",
    "approval-needed", "offline-node", "not-asked", "aborted",
]  # fmt: skip

Severity = Literal["error", "warning", "hint"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: an error, with which the plan cannot work, a warning, or a hint at what may come so.

    ``guids`` is whom it is about; of a circle, the path through it, which ends where it begins.
    """

    kind: ProblemKind
    severity: Severity = "error"
    guids: tuple[int, ...] = ()
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.text}"


class ImpossiblePlanError(ExperimentError, RuntimeError):
    """An experiment can never come to its end; ``problems`` says why."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "the experiment cannot work as it is: " + "; ".join(f"{one.kind}: {one.text}" for one in self.problems)
        )
