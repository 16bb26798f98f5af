"""The problems of a plan, and the facts that a plan is checked against."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.natures import Natures, natures
from fedmon.experiment.situation import Resource, State

ProblemKind = Literal[
    "unknown-resource", "unknown-type", "condition-cycle", "group-deadlock", "failed-resource", "impossible-quorum",
    "one-sided-connection", "refused-connection", "collector-without-trace", "skipped-state", "not-deployed",
    "not-stopped", "not-failed", "not-measured", "may-not-come", "missing-part", "wrong-attribute", "missing-dataset",
    "approval-needed", "offline-node", "not-asked", "aborted", "unknown-metric", "unused-quorum",
]  # fmt: skip

Severity = Literal["error", "warning", "hint"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: an error makes the plan impossible, a warning may, a hint describes a possible outcome.

    ``guids`` are the resources concerned; of a circle, the path through it, which ends where it begins.
    """

    kind: ProblemKind
    severity: Severity = "error"
    guids: tuple[int, ...] = ()
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.text}"


class ImpossiblePlanError(ExperimentError, RuntimeError):
    """The experiment can never finish; ``problems`` says why."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("the experiment cannot work: " + "; ".join(f"{one.kind}: {one.text}" for one in self.problems))


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the state of an experiment; None means unknown, and is not checked.

    ``accepts`` tells whether the first of two resources would take a connection to the second, ``nature`` what types
    declare about themselves. ``problems`` were found by the resources, such as a missing dataset. With ``are_removed``,
    resources that are not there were removed, and no longer count in conditions.
    """

    rtypes: Collection[str] | None = None
    accepts: Callable[[int, int], bool] | None = None
    attributes: Mapping[int, Mapping[str, Any]] | None = None
    names: Mapping[int, str] = {}
    nature: Natures = msgspec.field(default_factory=natures)
    problems: tuple[Problem, ...] = ()
    are_removed: bool = False


def called(guid: int, names: Mapping[int, str], state: State) -> str:
    """Return how messages name a resource: by guid, with its name or else its type."""
    resource = state.resources.get(guid)
    more = names.get(guid) or (resource.rtype if resource is not None else "")
    return f"resource {guid}{f' ({more})' if more else ''}"


def waits_of(resource: Resource, state: State) -> Iterator[tuple[str, str, AnyCondition]]:
    """Return each condition of a resource, with the name of the want that has it, and this want in words."""
    for action, condition in resource.conditions:
        yield VERB_OF[action], VERB_OF[action], condition
    for name in resource.sets:
        want = state.wants.get((resource.guid, name))
        if want is not None and want.attribute is not None:
            for condition in want.conditions:
                yield name, f"set {want.attribute[0]}", condition
