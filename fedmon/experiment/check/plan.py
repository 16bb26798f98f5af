"""A dry run of an experiment: the order of its steps, and the problems that would stop them."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase

import msgspec
from msgspec.structs import replace

from fedmon.common.text import joined, plural
from fedmon.experiment.check.graph import (
    DONE,
    SEVERITIES,
    Dependencies,
    ImpossiblePlanError,
    Problem,
    ProblemKind,
    Step,
    grouped,
    refuse_circles,
    waits_of,
)
from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import COMES_TO, VERB_OF
from fedmon.experiment.natures import lasts, nature
from fedmon.experiment.situation import Impossible, Resource, State, Want, members_of, verdict_on_condition
from fedmon.experiment.states import ResourceAction, ResourceState

_MEASURED = frozenset({"fedmon::Node", "fedmon::Monitor"})
"""The types whose metrics are those of the table; others may report numbers of any name."""
MEMORY_SHARE = "host_memory_used_ratio"
"""Computed by a Monitor for conditions, from two metrics of the table."""
_NEAR = 0.85
"""Names that are less alike than this are not typing errors, but metrics of plug-ins and users."""
_few = functools.partial(joined, most=12, last=", ")


class ExperimentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a dry run.

    ``waves`` holds the steps in the order in which they can come, simultaneous ones together; ``stuck`` the resources
    with a step that never can.
    """

    state: State
    waves: tuple[tuple[Step, ...], ...] = ()
    stuck: tuple[int, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make the experiment impossible."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems despite which the experiment may work."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @property
    def is_possible(self) -> bool:
        """Whether it has no errors."""
        return not self.errors

    def __repr__(self) -> str:
        return "\n".join(_lines(self))


def plan(state: State, *, problems: Iterable[Problem] = (), wait_all_ready: bool = True) -> ExperimentPlan:
    """Plan the rest of an experiment without doing any of it; problems are returned, not raised.

    Resources that are in no group are planned as one. ``problems`` are those that are known already.
    """
    graph = Dependencies(grouped(state, sorted(state.resources), wait_all_ready=wait_all_ready))
    stopping = {guid for guid, one in state.resources.items() if _has_stop(one)}
    waves = [
        tuple(step for step in wave if step.kind != "stop" or step.guid in stopping)
        for wave in (() if state.is_aborted else graph.waves)
    ]
    found = [*filter(None, [graph.circle()]), *problems, *_waits(state, state.resources.values())]
    if state.is_aborted:
        text = f"the experiment was aborted and starts nothing more: {state.level_reason}"
        found.append(Problem(kind="aborted", text=text))
    return ExperimentPlan(
        state=state,
        waves=tuple(filter(None, waves)),
        stuck=tuple(sorted({step.guid for step in graph.stuck if step.kind in DONE})),
        problems=tuple(sorted(found, key=lambda problem: SEVERITIES.index(problem.severity))),
    )


def refuse_impossible(
    state: State,
    *,
    deploying: Collection[int],
    group: int | None,
    wait_all_ready: bool,
    asked_for: AbstractSet[int],
    problems: Iterable[Problem],
) -> None:
    """Refuse a deployment that is known to fail, without asking the federation; cheap enough for each deployment.

    ``group`` is the number of the group that they join (None: a new one), ``asked_for`` holds all members of
    conditions, ``problems`` those that are known already. Raises ImpossiblePlanError for these, waits for lost
    resources, and circles.
    """
    chosen = [one for one in map(state.resources.get, deploying) if one is not None]
    if found := [one for one in (*problems, *_waits(state, chosen)) if one.severity == "error"]:
        raise ImpossiblePlanError(found)
    # A new circle leads through a member of the group, or through a resource that another one waits for.
    if group is not None or any(one.connections for one in chosen) or not asked_for.isdisjoint(deploying):
        refuse_circles(state, deploying=deploying, group=group, wait_all_ready=wait_all_ready)


@functools.lru_cache
def unknown_metric(name: str) -> str | None:
    """Return None if a metric, or a pattern with * and ?, is known; else the known name that it resembles, or ""."""
    from fedmon.common.metrics.series import metric_name
    from fedmon.common.metrics.table import METRICS

    known = [*METRICS, MEMORY_SHARE]
    wanted = metric_name(name)
    if any(fnmatchcase(each, wanted) for each in known):
        return None
    return next(iter(difflib.get_close_matches(wanted, known, n=1, cutoff=_NEAR)), "")


def _has_stop(resource: Resource) -> bool:
    """Tell whether a condition says when it stops."""
    return any(action is ResourceAction.STOP for action, _ in resource.conditions)


# --- single checks ----------------------------------------------------------------------------------------------------


def _waits(state: State, resources: Iterable[Resource]) -> Iterator[Problem]:
    """Check the conditions of pending verbs and settings; one that many resources share is checked once."""
    checked: dict[tuple[int, str], list[Problem]] = {}
    for resource in sorted(resources, key=lambda one: one.guid):
        for name, what, condition in waits_of(resource, state):
            if name in COMES_TO and resource.state >= COMES_TO[name]:
                continue
            key = (id(condition), name)
            if key not in checked:
                checked[key] = list(_of_condition(condition, name, state))
            for one in checked[key]:
                text = f"{what} of {resource.title} {one.text}"
                yield replace(one, guids=(resource.guid, *one.guids), text=text)


def _of_condition(condition: AnyCondition, name: str, state: State) -> Iterator[Problem]:
    """Return the problems of a condition without the resource that has it: each text continues after that."""
    want = Want(key=(0, name), since=0.0)
    found = verdict_on_condition(condition, want, state.resources, 0.0)
    _, missing, lost = members_of(condition, want, state.resources)
    if isinstance(found, Impossible):
        kind: ProblemKind = "may-not-come" if isinstance(condition, MetricCondition) else "failed-resource"
        kind = kind if condition.at_least is None else "impossible-quorum"
        yield Problem(kind=kind, guids=tuple(one.guid for one in lost), text=f"can never come: {found.reason}")
    if isinstance(condition, MetricCondition):
        for one in missing:
            yield from _of_metric(condition, one)
    elif condition.state is ResourceState.STOPPED:
        yield from _endings(condition, missing, state)


def _of_metric(condition: MetricCondition, other: Resource) -> Iterator[Problem]:
    metric = condition.metric.name
    if nature(other.rtype).rtypes & _MEASURED and (near := unknown_metric(metric)) is not None:
        advice = f"did you mean {near!r}?" if near else "see docs/metrics.md"
        text = f"waits for {metric} of {other.title}, which is not in the table of metrics; {advice}"
        yield Problem(kind="unknown-metric", severity="warning", guids=(other.guid,), text=text)


def _endings(condition: StateCondition, missing: list[Resource], state: State) -> Iterator[Problem]:
    """Return members that must be STOPPED, and that nothing known stops; a call still may."""
    lasting = [one for one in missing if not _has_stop(one) and lasts(one, state.resources)]
    for one in lasting if len(condition.group) - len(lasting) < condition.needed else ():
        text = f"waits for {one.title} to be STOPPED, but its type runs until a stop or its release"
        yield Problem(kind="not-stopped", severity="warning", guids=(one.guid,), text=text)


# --- the plan in words ------------------------------------------------------------------------------------------------


def _lines(plan: ExperimentPlan) -> Iterator[str]:
    resources = plan.state.resources
    conditions = sum(len(resource.conditions) for resource in resources.values())
    yield f"{plural(len(resources), 'resource')}, {plural(conditions, 'condition')}"
    for number, wave in enumerate(plan.waves, 1):
        told = {verb: [_told(plan, step) for step in wave if step.kind == verb] for verb in DONE}
        yield f"{number:4}. {'; '.join(f'{verb} {_few(steps)}' for verb, steps in told.items() if steps)}"
    if plan.stuck:
        yield f"never completed: {_few([_name(plan, guid) for guid in plan.stuck])}"
    yield from map(str, plan.problems)
    counts = ((severity, sum(one.severity == severity for one in plan.problems)) for severity in SEVERITIES)
    counted = ", ".join(plural(count, severity) for severity, count in counts if count)
    if plan.errors:
        yield f"{counted}: the experiment cannot work"
    else:
        yield f"no errors, {counted}" if counted else "no problems found"


def _told(plan: ExperimentPlan, step: Step) -> str:
    resource = plan.state.resources[step.guid]
    conditions = [condition for action, condition in resource.conditions if VERB_OF[action] == step.kind]
    waits = " and ".join(filter(None, (_wait(plan, condition) for condition in conditions)))
    who = f"{step.guid} {resource.name or resource.rtype}"
    return f"{who} when {waits}" if waits else who


def _wait(plan: ExperimentPlan, condition: AnyCondition) -> str:
    """Return a condition in words, without removed members, for which nothing waits; "" if all were removed."""
    group = [guid for guid in condition.group if guid in plan.state.resources]
    quorum = "" if condition.at_least is None else f"{condition.at_least} of "
    colon = ":" if isinstance(condition, MetricCondition) else ""
    return f"{quorum}{_few([_name(plan, guid) for guid in group])}{colon} {condition}" if group else ""


def _name(plan: ExperimentPlan, guid: int) -> str:
    return f"{guid} {plan.state.resources[guid].name}".rstrip()
