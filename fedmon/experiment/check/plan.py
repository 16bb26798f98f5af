"""A dry run of an experiment: the order of what would happen, and the problems that would stop it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from fedmon.experiment.check.graph import DONE, Dependencies, Step, refuse_circles
from fedmon.experiment.check.problems import (
    SEVERITIES,
    Facts,
    ImpossiblePlanError,
    Problem,
    ProblemKind,
    Severity,
    called,
)
from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import COMES_TO, VERB_OF
from fedmon.experiment.natures import Need, is_kind, lasts, needed
from fedmon.experiment.situation import Resource, State, Want
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verdicts import Doomed, has_held, verdict_on_condition

_MEASURED = ("fedmon::Node", "fedmon::Monitor")
"""The types whose numbers are metrics of the table; others may tell numbers of any name."""
_DERIVED = "host_memory_used_ratio"
"""Computed by a Monitor from two metrics of the table."""
_MANY = 12
_T = TypeVar("_T")


class ExperimentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a dry run.

    ``waves`` holds the steps in the order in which they can come, simultaneous ones together; ``stuck`` the resources
    with a step that never can.
    """

    state: State
    facts: Facts
    waves: tuple[tuple[Step, ...], ...]
    stuck: tuple[int, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make it impossible."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems despite which it may work."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @property
    def is_possible(self) -> bool:
        """Whether it has no errors."""
        return not self.errors

    def check(self) -> None:
        """Raise ImpossiblePlanError if there are errors."""
        if self.errors:
            raise ImpossiblePlanError(self.errors)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def text(self) -> str:
        """Return the plan as text."""
        return str(self)

    def dot(self) -> str:
        """Return the plan as a graph in the DOT language of Graphviz."""
        from fedmon.experiment.check.diagram import dot_of, picture_of

        return dot_of(picture_of(self.state, names=self.facts.names, problems=self.problems))

    def svg(self) -> str:
        """Return the plan as a drawing. Raises MissingExtraError without the extra `report`."""
        from fedmon.experiment.check.diagram import content_of, picture_of

        return content_of(picture_of(self.state, names=self.facts.names, problems=self.problems), "svg").decode()


def plan(
    state: State,
    facts: Facts | None = None,
    *,
    deploying: Collection[int] | None = None,
    wait_all_ready: bool = True,
) -> ExperimentPlan:
    """Plan the rest of an experiment without doing any of it.

    ``deploying`` are the resources about to be deployed as one group (default: all that are in none); others in no
    group count as deployed later. Problems are returned, not raised: see `Plan.check`.
    """
    facts = Facts() if facts is None else facts
    graph = Dependencies(state, facts.nature, deploying=deploying, wait_all_ready=wait_all_ready)
    circles = graph.circles(facts.names)
    hops = {hop for circle in circles for hop in zip(circle.guids, circle.guids[1:], strict=False)}
    problems = [
        *(
            one
            for one in Checks(state, facts, graph.is_coming).all()
            if one.kind != "not-stopped" or one.guids not in hops
        ),
        *circles,
        *_possible_circles(state, facts, deploying, circles, wait_all_ready=wait_all_ready),
        *facts.problems,
    ]
    stopping = {guid for guid, one in state.resources.items() if _has_stop(one)}
    waves = [
        tuple(step for step in wave if step.kind != "stop" or step.guid in stopping)
        for wave in (() if state.is_aborted else graph.waves)
    ]
    return ExperimentPlan(
        state=state,
        facts=facts,
        waves=tuple(filter(None, waves)),
        stuck=tuple(sorted({step.guid for step in graph.stuck if step.kind in DONE})),
        problems=tuple(sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))),
    )


def refuse_impossible(
    state: State,
    *,
    deploying: Collection[int],
    group: int | None = None,
    wait_all_ready: bool = True,
    names: Mapping[int, str] | None = None,
    asked_for: AbstractSet[int] | None = None,
) -> None:
    """Refuse a deployment that is known to fail, without asking the federation; cheap enough for each deployment.

    ``group`` is the number of the group that they join (default: a new one); ``asked_for`` all members of conditions,
    if known. Raises ImpossiblePlanError for missing parts, for waits for lost resources, and for circles.
    """
    facts = Facts(names=names or {}, are_removed=True)
    chosen = [one for one in map(state.resources.get, deploying) if one is not None]
    found = list(Checks(state, facts).in_vain(chosen))
    if found:
        raise ImpossiblePlanError(found)
    # A new circle leads through a member of the group, or through a resource that another one waits for.
    is_alone = asked_for is not None and group is None and asked_for.isdisjoint(deploying)
    if not is_alone or any(one.connections for one in chosen):
        refuse_circles(state, facts, deploying=deploying, group=group, wait_all_ready=wait_all_ready)


def _has_stop(resource: Resource) -> bool:
    return any(action is ResourceAction.STOP for action, _ in resource.conditions)


def _possible_circles(
    state: State, facts: Facts, deploying: Collection[int] | None, known: Collection[Problem], *, wait_all_ready: bool
) -> Iterator[Problem]:
    """Return the circles that exist unless a resource whose type has code of its own ends by itself."""
    if not any(_has_stop(one) and facts.nature(one.rtype).ending == "maybe" for one in state.resources.values()):
        return
    graph = Dependencies(state, facts.nature, deploying=deploying, wait_all_ready=wait_all_ready, none_may_end=True)
    paths = {problem.guids for problem in known}
    for problem in graph.circles(facts.names):
        if problem.guids not in paths:
            text = f"{problem.text}; only an end that comes by itself leads out of it"
            yield replace(problem, severity="warning", text=text)


# --- single checks ----------------------------------------------------------------------------------------------------


class PlannedWait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One condition of something still to be done: by the name of its want, and in words."""

    guid: int
    name: str
    what: str
    condition: AnyCondition


class Checks:
    """Checks an experiment piece by piece. ``is_coming`` tells whether a resource is deployed, or about to be."""

    def __init__(self, state: State, facts: Facts, is_coming: Callable[[Resource], bool] = lambda _resource: True):
        self._state, self._resources = state, state.resources
        self._facts, self._nature, self._is_coming = facts, facts.nature, is_coming

    def all(self) -> Iterator[Problem]:
        """Return all problems but circles."""
        if self._state.is_aborted:
            text = f"the experiment was aborted, and starts nothing more: {self._state.level_reason}"
            yield Problem(kind="aborted", text=text)
        for resource in self._resources.values():
            yield from self._of_type(resource)
        yield from self.connections()
        yield from self._once(self._waits(), self._of_wait)
        for resource in self._resources.values():
            if resource.state < ResourceState.FAILED and self._is_coming(resource):
                yield from self._needs(resource)
            yield from self._inputs(resource)
            yield from self._quorums(resource)

    def in_vain(self, resources: Iterable[Resource]) -> Iterator[Problem]:
        """Return why a deployment of resources must fail, as far as that is cheap to tell."""
        waiting: list[PlannedWait] = []
        for resource in resources:
            found = self._missing_parts(resource, resource.attributes)
            yield from (problem for problem in found if problem.severity == "error")
            waiting += self._waits_of(resource) if resource.conditions else ()
        yield from self._once(waiting, self._losses)

    def _once(
        self, waits: Iterable[PlannedWait], check: Callable[[PlannedWait], Iterator[Problem]]
    ) -> Iterator[Problem]:
        """Check waits, but each condition that many share only once if nothing is wrong with it."""
        fine: set[tuple[int, str]] = set()
        for wait in waits:
            key = (id(wait.condition), wait.name)
            found = list(check(wait)) if key not in fine else []
            if not found:
                fine.add(key)
            yield from found

    def connections(self) -> Iterator[Problem]:
        """Return the connections that one side does not have, or would refuse."""
        for resource in self._resources.values():
            for guid in sorted(resource.connections):
                pair, other = (resource.guid, guid), self._resources.get(guid)
                who, whom = map(self._called, pair)
                if other is None:
                    yield Problem(
                        kind="unknown-resource", guids=pair, text=f"{who} is connected to {whom}, which does not exist"
                    )
                elif resource.guid not in other.connections:
                    text = f"{who} is connected to {whom}, but {whom} not to {who}"
                    yield Problem(kind="one-sided-connection", guids=pair, text=text)
                elif self._facts.accepts is not None and resource.guid < guid:
                    yield from self._accepted(self._facts.accepts, pair)

    def _called(self, guid: int) -> str:
        return called(guid, self._facts.names, self._state)

    def _accepted(self, accepts: Callable[[int, int], bool], pair: tuple[int, int]) -> Iterator[Problem]:
        takes, names = (accepts(*pair), accepts(*pair[::-1])), tuple(map(self._called, pair))
        if not any(takes):
            text = f"neither {names[0]} nor {names[1]} takes a connection to the other"
            yield Problem(kind="refused-connection", guids=pair, text=text)
        elif not all(takes):
            willing, refusing = names if takes[0] else names[::-1]
            text = f"{willing} takes a connection to {refusing}, but {refusing} takes none to {willing}"
            yield Problem(kind="one-sided-connection", guids=pair, text=text)

    # --- what a resource lacks ----------------------------------------------------------------------------------------

    def _of_type(self, resource: Resource) -> Iterator[Problem]:
        rtypes, attributes = self._facts.rtypes, self._facts.attributes
        if rtypes is not None and resource.rtype not in rtypes:
            text = f"the type of {self._called(resource.guid)} is not registered; known: {', '.join(sorted(rtypes))}"
            yield Problem(kind="unknown-type", guids=(resource.guid,), text=text)
        if attributes is not None:
            given = attributes.get(resource.guid, {})
            yield from self._missing_parts(resource, given)
            yield from self._patterns(resource, given)

    def _missing_parts(self, resource: Resource, given: Mapping[str, Any]) -> Iterator[Problem]:
        """Return what a resource lacks; with a condition on its deploy it may still get that, so it is a warning."""
        mine = self._nature(resource.rtype)
        if resource.state >= ResourceState.READY or not (mine.attributes or mine.connections):
            return
        is_held = any(action is ResourceAction.DEPLOY for action, _ in resource.conditions)
        severity: Severity = "warning" if is_held else "error"
        who, guids = self._called(resource.guid), (resource.guid,)
        for name in mine.attributes:
            if given.get(name) in (None, "") and resource.attributes.get(name) in (None, ""):
                is_trace = name == "traceName" and any(each.endswith("Collector") for each in mine.rtypes)
                kind: ProblemKind = "collector-without-trace" if is_trace else "missing-part"
                yield Problem(kind=kind, severity=severity, guids=guids, text=f"{who} has no {name}: set the attribute")
        others = [self._resources[guid] for guid in resource.connections if guid in self._resources]
        for rtypes in mine.connections:
            if not any(is_kind(other.rtype, rtype, self._nature) for other in others for rtype in rtypes):
                text = f"{who} has no {' or '.join(rtypes)}: connect it to one"
                yield Problem(kind="missing-part", severity=severity, guids=guids, text=text)

    def _patterns(self, resource: Resource, given: Mapping[str, Any]) -> Iterator[Problem]:
        """Return the patterns of a Monitor that match no metric."""
        patterns = given.get("metrics") or resource.attributes.get("metrics")
        if not is_kind(resource.rtype, "fedmon::Monitor", self._nature) or not isinstance(patterns, list | tuple):
            return
        if any(one.kind == "wrong-attribute" and resource.guid in one.guids for one in self._facts.problems):
            return  # refused already, with the name that was meant
        for pattern in patterns:
            if isinstance(pattern, str) and (near := unknown_metric(pattern)) is not None:
                text = f"{self._called(resource.guid)} records {pattern!r}, which is not in the table of metrics{near}"
                yield Problem(kind="unknown-metric", severity="warning", guids=(resource.guid,), text=text)

    # --- what a resource waits for by its type ------------------------------------------------------------------------

    def _to_come(self, resource: Resource) -> Iterator[tuple[str, Need, Resource]]:
        """Return which others the verbs still to come need."""
        if self._nature(resource.rtype).needs:
            for action in ResourceAction:
                verb = VERB_OF[action]
                if resource.state < COMES_TO[verb]:
                    for need, other in needed(resource, verb, self._resources, self._nature):
                        yield verb, need, other

    def _needs(self, resource: Resource) -> Iterator[Problem]:
        """Return resources that it needs, and that are lost or not deployed."""
        for verb, _, other in self._to_come(resource):
            what, guids = f"{verb} of {self._called(resource.guid)}", (resource.guid, other.guid)
            if other.state is ResourceState.NEW and not self._is_coming(other):
                yield self._not_deployed(what, *guids)
            elif other.state >= ResourceState.FAILED and other.critical and verb != "stop":
                text = f"{what} needs {self._called(other.guid)}, which is {other.state.name}"
                yield Problem(kind="failed-resource", severity="warning", guids=guids, text=text)

    def _inputs(self, resource: Resource) -> Iterator[Problem]:
        """Return inputs from a resource that no condition waits for, directly or through others."""
        for verb, need, other in self._to_come(resource):
            if need.attribute and other.state < need.state and other.guid not in self._awaited(resource):
                who, whom = map(self._called, (resource.guid, other.guid))
                text = f"{verb} of {who} needs {whom} to be {need.state.name} ({need.attribute})"
                text += ", but no condition waits for that"
                yield Problem(kind="missing-part", severity="warning", guids=(resource.guid, other.guid), text=text)

    def _awaited(self, resource: Resource) -> set[int]:
        found: set[int] = set()
        waiting = [resource]
        while waiting:
            each = waiting.pop()
            guids = {guid for _, condition in each.conditions for guid in condition.group}
            for verb in VERB_OF.values():
                others = needed(each, verb, self._resources, self._nature)
                guids.update(other.guid for need, other in others if not need.attribute)
            waiting += [self._resources[guid] for guid in guids - found if guid in self._resources]
            found |= guids
        return found

    def _quorums(self, resource: Resource) -> Iterator[Problem]:
        """Return quorums on the start of an Aggregator, which all the same ends only with all of its jobs."""
        if not is_kind(resource.rtype, "fedmon::Aggregator", self._nature) or resource.attributes.get("atLeast"):
            return
        awaited = {other.guid for _, other in needed(resource, "stop", self._resources, self._nature)}
        for action, condition in resource.conditions:
            if action is ResourceAction.START and condition.needed < len(awaited.intersection(condition.group)):
                text = (
                    f"start of {self._called(resource.guid)} waits for {condition.needed} of {len(condition.group)} "
                    f"jobs, but it ends only after all of them: set atLeast={condition.needed} on it"
                )
                yield Problem(kind="unused-quorum", severity="warning", guids=(resource.guid,), text=text)

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _waits(self) -> Iterator[PlannedWait]:
        for resource in self._resources.values():
            yield from self._waits_of(resource)
        for want in self._state.wants.values():
            if want.attribute is not None:
                what = f"setting {want.attribute[0]} of {self._called(want.guid)}"
                for condition in want.conditions:
                    yield PlannedWait(guid=want.guid, name=want.name, what=what, condition=condition)

    def _waits_of(self, resource: Resource) -> Iterator[PlannedWait]:
        for action, condition in resource.conditions:
            verb = VERB_OF[action]
            if resource.state < COMES_TO[verb]:
                what = f"{verb} of {self._called(resource.guid)}"
                yield PlannedWait(guid=resource.guid, name=verb, what=what, condition=condition)

    def _of_wait(self, wait: PlannedWait) -> Iterator[Problem]:
        yield from self._losses(wait)
        for guid in wait.condition.group:
            other = self._resources.get(guid)
            if other is None:
                if not self._facts.are_removed:
                    text = f"{wait.what} waits for {self._called(guid)}, which does not exist"
                    yield Problem(kind="unknown-resource", guids=(wait.guid, guid), text=text)
            elif other.state is ResourceState.NEW and not self._is_coming(other):
                yield self._not_deployed(wait.what, wait.guid, guid)
            elif isinstance(wait.condition, StateCondition):
                yield from self._state_of(wait, wait.condition.state, other)
            else:
                yield from self._metric_of(wait, wait.condition, other)
        yield from self._endings(wait)

    def _losses(self, wait: PlannedWait) -> Iterator[Problem]:
        """Return why a condition can never hold any more."""
        condition = wait.condition
        if condition.at_least is None and isinstance(condition, StateCondition):
            # Members that are still to come are waited for first, but the wait fails with this one all the same.
            for guid in condition.group if condition.state is not ResourceState.FAILED else ():
                member = self._resources.get(guid)
                if member is not None and member.state is ResourceState.FAILED and member.critical:
                    text = f"{wait.what} waits for {self._called(guid)}, which is critical and failed"
                    yield Problem(kind="failed-resource", guids=(wait.guid, guid), text=text)
            return
        want = Want(key=(wait.guid, wait.name), since=0.0, conditions=(condition,))
        found = verdict_on_condition(condition, want, self._resources, 0.0)
        are_known = self._facts.are_removed or all(guid in self._resources for guid in condition.group)
        if isinstance(found, Doomed) and are_known:
            kind: ProblemKind = "impossible-quorum" if condition.at_least is not None else "may-not-come"
            guids = (wait.guid, *condition.group)
            yield Problem(kind=kind, guids=guids, text=f"{wait.what} can never come: {found.reason}")

    def _not_deployed(self, what: str, guid: int, other: int) -> Problem:
        text = f"{what} waits for {self._called(other)}, which is not deployed yet"
        return Problem(kind="not-deployed", severity="warning", guids=(guid, other), text=text)

    def _about(
        self, kind: ProblemKind, severity: Literal["warning", "hint"], wait: PlannedWait, other: Resource, text: str
    ) -> Problem:
        return Problem(
            kind=kind, severity=severity, guids=(wait.guid, other.guid), text=f"{wait.what} waits for {text}"
        )

    def _state_of(self, wait: PlannedWait, wanted: ResourceState, other: Resource) -> Iterator[Problem]:
        if other.state >= wanted:
            return
        text = f"{self._called(other.guid)} to be {wanted.name}"
        if wanted in self._nature(other.rtype).skips:
            text += ", which its type skips: the next state counts"
            yield self._about("skipped-state", "warning", wait, other, text)
        elif wanted is ResourceState.FAILED:
            yield self._about("not-failed", "hint", wait, other, f"{text}, which never comes if it succeeds")

    def _metric_of(self, wait: PlannedWait, condition: MetricCondition, other: Resource) -> Iterator[Problem]:
        if has_held(condition, other) or other.state >= ResourceState.STOPPED:
            return
        nature, name = self._nature(other.rtype), condition.metric.name
        text = f"{name} of {self._called(other.guid)}"
        if any(is_kind(other.rtype, rtype, self._nature) for rtype in _MEASURED):
            near = unknown_metric(name)
            if near is not None:
                yield self._about(
                    "unknown-metric", "warning", wait, other, f"{text}, which is not in the table of metrics{near}"
                )
        near_by = [self._resources[guid].rtype for guid in other.connections if guid in self._resources]
        measured_by = nature.measured_by
        if measured_by is not None and not any(
            is_kind(each, by, self._nature) for each in near_by for by in measured_by
        ):
            if measured_by:
                text += f", which is not measured: connect it to a {' or a '.join(measured_by)}"
                yield self._about("not-measured", "warning", wait, other, text)
            else:
                text += ", whose type tells no numbers: call ec.measured for it"
                yield self._about("not-measured", "hint", wait, other, text)
        elif nature.ending == "always" and wait.name != "stop":
            text += ", which may end without it; the wait fails then"
            yield self._about("may-not-come", "hint", wait, other, text)

    def _endings(self, wait: PlannedWait) -> Iterator[Problem]:
        """Return members that must be STOPPED, and that nothing known stops; a call still may."""
        condition = wait.condition
        if not isinstance(condition, StateCondition) or condition.state is not ResourceState.STOPPED:
            return
        members = [self._resources[guid] for guid in condition.group if guid in self._resources]
        lasting = [member for member in members if self._lasts(member)]
        if len(condition.group) - len(lasting) < condition.needed:
            for member in lasting:
                text = f"{self._called(member.guid)} to be STOPPED, but its type runs until a stop or its release"
                yield self._about("not-stopped", "warning", wait, member, text)

    def _lasts(self, resource: Resource) -> bool:
        is_stopped = any(action is ResourceAction.STOP for action, _ in resource.conditions)
        if resource.state >= ResourceState.STOPPED or is_stopped:
            return False
        return lasts(resource, self._resources, self._nature)


def unknown_metric(name: str) -> str | None:
    """Return None if a metric, or a pattern with * and ?, is known; else a suggestion, "" without a similar name."""
    from fedmon.common.metrics.series import metric_name
    from fedmon.common.metrics.table import METRICS

    known = [*METRICS, _DERIVED]
    wanted = metric_name(name)
    if any(fnmatchcase(each, wanted) for each in known):
        return None
    near = difflib.get_close_matches(wanted, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; see docs/metrics.md"


# --- the plan in words ------------------------------------------------------------------------------------------------


def _lines(plan: ExperimentPlan) -> Iterator[str]:
    resources = plan.state.resources
    conditions = sum(len(resource.conditions) for resource in resources.values())
    yield f"{_counted(len(resources), 'resource')}, {_counted(conditions, 'condition')}"
    tell = partial(_told, plan)
    for number, wave in enumerate(plan.waves, 1):
        kinds = dict.fromkeys(kind for kind in DONE if any(step.kind == kind for step in wave))
        parts = (f"{kind} {_few([step for step in wave if step.kind == kind], tell)}" for kind in kinds)
        yield f"{number:4}. {'; '.join(parts)}"
    if plan.stuck:
        yield f"never comes to its end: {_few(plan.stuck, partial(_name, plan))}"
    yield from map(str, plan.problems)
    counts = ((severity, sum(one.severity == severity for one in plan.problems)) for severity in SEVERITIES)
    counted = ", ".join(_counted(count, severity) for severity, count in counts if count)
    yield (
        f"{counted}: the experiment cannot work"
        if plan.errors
        else f"no errors, {counted}"
        if counted
        else "no problems found"
    )


def _few(those: Sequence[_T], word: Callable[[_T], str]) -> str:
    """Return words with commas; of very many only the first, and the number of the others."""
    shown = those if len(those) <= _MANY + 1 else those[:_MANY]
    more = f" and {len(those) - _MANY} more" if len(shown) < len(those) else ""
    return ", ".join(map(word, shown)) + more


def _told(plan: ExperimentPlan, step: Step) -> str:
    resource = plan.state.resources[step.guid]
    waits = [
        _wait(plan, condition, group)
        for action, condition in resource.conditions
        if action.name.lower() == step.kind and (group := _asked(plan, condition))
    ]
    who = _name(plan, step.guid) if plan.facts.names.get(step.guid) else f"{step.guid} {resource.rtype}"
    return f"{who} when {' and '.join(waits)}" if waits else who


def _asked(plan: ExperimentPlan, condition: AnyCondition) -> tuple[int, ...]:
    """Return the members of a condition, without removed ones, for which nothing waits."""
    is_asked = plan.state.resources.__contains__
    return tuple(filter(is_asked, condition.group)) if plan.facts.are_removed else condition.group


def _wait(plan: ExperimentPlan, condition: AnyCondition, group: tuple[int, ...]) -> str:
    quorum = "" if condition.at_least is None else f"{condition.at_least} of "
    colon = ":" if isinstance(condition, MetricCondition) else ""
    return f"{quorum}{_few(group, partial(_name, plan))}{colon} {condition}"


def _name(plan: ExperimentPlan, guid: int) -> str:
    return f"{guid} {plan.facts.names.get(guid, '')}".rstrip()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
