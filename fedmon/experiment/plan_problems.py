"""What is known of a planned experiment, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.natures import Natures, natures
from fedmon.experiment.situation import State

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


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the state of an experiment; whatever is null is not looked at.

    ``accepts`` tells whether the first of two resources would take a connection to the second. ``nature`` tells what
    types say of themselves. ``problems`` were found by the resources themselves, such as a dataset that is missing.
    Those that are not there were taken out where ``are_removed`` says so: nobody waits for them then.
    """

    rtypes: Collection[str] | None = None
    accepts: Callable[[int, int], bool] | None = None
    attributes: Mapping[int, Mapping[str, Any]] | None = None
    names: Mapping[int, str] = {}
    nature: Natures = msgspec.field(default_factory=natures)
    problems: tuple[Problem, ...] = ()
    are_removed: bool = False


def called(guid: int, names: Mapping[int, str], state: State) -> str:
    """Return what people call a resource: its guid, with its name, or else its type."""
    resource = state.resources.get(guid)
    more = names.get(guid) or (resource.rtype if resource is not None else "")
    return f"resource {guid}{f' ({more})' if more else ''}"
