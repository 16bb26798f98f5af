"""A dry run of an experiment: the order of what would happen, and the problems that would stop it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec.structs import replace

from fedmon.common.text import joined, plural
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
from fedmon.experiment.natures import lasts, needed
from fedmon.experiment.situation import Impossible, Resource, State, Want, has_held, verdict_on_condition
from fedmon.experiment.states import ResourceAction, ResourceState

_MEASURED = ("fedmon::Node", "fedmon::Monitor")
"""The types whose numbers are metrics of the table; others may tell numbers of any name."""
_DERIVED = "host_memory_used_ratio"
"""Computed by a Monitor from two metrics of the table."""
_MANY = 12


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

    def __str__(self) -> str:
        return "\n".join(_lines(self))


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
    stopping = {guid for guid, one in state.resources.items() if _has(ResourceAction.STOP, one)}
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


def _has(action: ResourceAction, resource: Resource) -> bool:
    return any(mine is action for mine, _ in resource.conditions)


def _possible_circles(
    state: State, facts: Facts, deploying: Collection[int] | None, known: Collection[Problem], *, wait_all_ready: bool
) -> Iterator[Problem]:
    """Return the circles that exist unless a resource whose type has code of its own ends by itself."""
    if not any(
        _has(ResourceAction.STOP, one) and facts.nature(one.rtype).ending == "maybe" for one in state.resources.values()
    ):
        return
    graph = Dependencies(state, facts.nature, deploying=deploying, wait_all_ready=wait_all_ready, none_may_end=True)
    paths = {problem.guids for problem in known}
    for problem in graph.circles(facts.names):
        if problem.guids not in paths:
            text = f"{problem.text}; only an end that comes by itself leads out of it"
            yield replace(problem, severity="warning", text=text)


# --- single checks ----------------------------------------------------------------------------------------------------


class _Wait(msgspec.Struct, frozen=True, gc=False):
    """One condition of something still to be done: by the name of its want, and in words."""

    guid: int
    name: str
    what: str
    condition: AnyCondition


def _problem(kind: ProblemKind, text: str, *guids: int, severity: Severity = "error") -> Problem:
    return Problem(kind=kind, severity=severity, guids=guids, text=text)


class Checks:
    """Checks an experiment piece by piece. ``is_coming`` tells whether a resource is deployed, or about to be."""

    def __init__(self, state: State, facts: Facts, is_coming: Callable[[Resource], bool] = lambda _resource: True):
        self._state, self._resources = state, state.resources
        self._facts, self._nature, self._is_coming = facts, facts.nature, is_coming

    def all(self) -> Iterator[Problem]:
        """Return all problems but circles."""
        if self._state.is_aborted:
            yield _problem(
                "aborted", f"the experiment was aborted, and starts nothing more: {self._state.level_reason}"
            )
        for resource in self._resources.values():
            yield from self._of_type(resource)
        yield from self.connections()
        waits = [wait for resource in self._resources.values() for wait in self._waits_of(resource)]
        for want in self._state.wants.values():
            if want.attribute is not None:
                what = f"setting {want.attribute[0]} of {self._called(want.guid)}"
                waits += [_Wait(want.guid, want.name, what, condition) for condition in want.conditions]
        yield from self._once(waits, self._of_wait)
        for resource in self._resources.values():
            yield from self._needs(resource)
            yield from self._quorums(resource)

    def in_vain(self, resources: Iterable[Resource]) -> Iterator[Problem]:
        """Return why a deployment of resources must fail, as far as that is cheap to tell."""
        waits: list[_Wait] = []
        for resource in resources:
            found = self._missing_parts(resource, resource.attributes)
            yield from (problem for problem in found if problem.severity == "error")
            waits += self._waits_of(resource) if resource.conditions else ()
        yield from self._once(waits, self._losses)

    def _once(self, waits: Iterable[_Wait], check: Callable[[_Wait], Iterator[Problem]]) -> Iterator[Problem]:
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
        accepts = self._facts.accepts
        for resource in self._resources.values():
            for guid in sorted(resource.connections):
                pair, other = (resource.guid, guid), self._resources.get(guid)
                who, whom = map(self._called, pair)
                if other is None:
                    yield _problem("unknown-resource", f"{who} is connected to {whom}, which does not exist", *pair)
                elif resource.guid not in other.connections:
                    yield _problem(
                        "one-sided-connection", f"{who} is connected to {whom}, but {whom} not to {who}", *pair
                    )
                elif accepts is not None and resource.guid < guid:
                    takes = accepts(*pair), accepts(*pair[::-1])
                    if not any(takes):
                        text = f"neither {who} nor {whom} takes a connection to the other"
                        yield _problem("refused-connection", text, *pair)
                    elif not all(takes):
                        one, two = (who, whom) if takes[0] else (whom, who)
                        text = f"{one} takes a connection to {two}, but {two} takes none to {one}"
                        yield _problem("one-sided-connection", text, *pair)

    def _called(self, guid: int) -> str:
        return called(guid, self._facts.names, self._state)

    # --- what a resource lacks ----------------------------------------------------------------------------------------

    def _of_type(self, resource: Resource) -> Iterator[Problem]:
        rtypes, attributes = self._facts.rtypes, self._facts.attributes
        if rtypes is not None and resource.rtype not in rtypes:
            text = f"the type of {self._called(resource.guid)} is not registered; known: {', '.join(sorted(rtypes))}"
            yield _problem("unknown-type", text, resource.guid)
        if attributes is not None:
            given = attributes.get(resource.guid, {})
            yield from self._missing_parts(resource, given)
            yield from self._patterns(resource, given)

    def _missing_parts(self, resource: Resource, given: Mapping[str, Any]) -> Iterator[Problem]:
        """Return what a resource lacks; with a condition on its deploy it may still get that, so it is a warning."""
        mine = self._nature(resource.rtype)
        if resource.state >= ResourceState.READY or not (mine.attributes or mine.connections):
            return
        severity: Severity = "warning" if _has(ResourceAction.DEPLOY, resource) else "error"
        who = self._called(resource.guid)
        for name in mine.attributes:
            if given.get(name) in (None, "") and resource.attributes.get(name) in (None, ""):
                is_trace = name == "traceName" and any(each.endswith("Collector") for each in mine.rtypes)
                kind: ProblemKind = "collector-without-trace" if is_trace else "missing-part"
                yield _problem(kind, f"{who} has no {name}: set the attribute", resource.guid, severity=severity)
        others = [self._resources[guid].rtype for guid in resource.connections if guid in self._resources]
        for rtypes in mine.connections:
            if not self._is_any(others, rtypes):
                text = f"{who} has no {' or '.join(rtypes)}: connect it to one"
                yield _problem("missing-part", text, resource.guid, severity=severity)

    def _is_any(self, rtypes: Iterable[str], of: Iterable[str]) -> bool:
        """Tell whether one of several types is, or derives from, one of others."""
        return any(self._nature(rtype).rtypes.intersection(of) for rtype in rtypes)

    def _patterns(self, resource: Resource, given: Mapping[str, Any]) -> Iterator[Problem]:
        """Return the patterns of a Monitor that match no metric."""
        patterns = given.get("metrics") or resource.attributes.get("metrics")
        if not self._is_any([resource.rtype], ["fedmon::Monitor"]) or not isinstance(patterns, list | tuple):
            return
        if any(one.kind == "wrong-attribute" and resource.guid in one.guids for one in self._facts.problems):
            return  # refused already, with the name that was meant
        for pattern in patterns:
            if isinstance(pattern, str) and (near := unknown_metric(pattern)) is not None:
                text = f"{self._called(resource.guid)} records {pattern!r}, which is not in the table of metrics{near}"
                yield _problem("unknown-metric", text, resource.guid, severity="warning")

    # --- what a resource waits for by its type ------------------------------------------------------------------------

    def _needs(self, resource: Resource) -> Iterator[Problem]:
        """Return resources that the verbs still to come need: lost, not deployed, or inputs that nothing waits for."""
        is_coming = resource.state < ResourceState.FAILED and self._is_coming(resource)
        who = self._called(resource.guid)
        for action in ResourceAction if self._nature(resource.rtype).needs else ():
            verb = VERB_OF[action]
            if resource.state >= COMES_TO[verb]:
                continue
            for need, other in needed(resource, verb, self._resources, self._nature):
                whom, pair = self._called(other.guid), (resource.guid, other.guid)
                is_lost = other.state >= ResourceState.FAILED and other.critical and verb != "stop"
                if is_coming and other.state is ResourceState.NEW and not self._is_coming(other):
                    yield self._not_deployed(f"{verb} of {who}", *pair)
                elif is_coming and is_lost:
                    text = f"{verb} of {who} needs {whom}, which is {other.state.name}"
                    yield _problem("failed-resource", text, *pair, severity="warning")
                if need.attribute and other.state < need.state and other.guid not in self._awaited(resource):
                    text = f"{verb} of {who} needs {whom} to be {need.state.name} ({need.attribute})"
                    text += ", but no condition waits for that"
                    yield _problem("missing-part", text, *pair, severity="warning")

    def _awaited(self, resource: Resource) -> set[int]:
        """Return the guids that a resource waits for, directly or through others."""
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
        if not self._is_any([resource.rtype], ["fedmon::Aggregator"]) or resource.attributes.get("atLeast"):
            return
        awaited = {other.guid for _, other in needed(resource, "stop", self._resources, self._nature)}
        for action, condition in resource.conditions:
            if action is ResourceAction.START and condition.needed < len(awaited.intersection(condition.group)):
                text = (
                    f"start of {self._called(resource.guid)} waits for {condition.needed} of {len(condition.group)} "
                    f"jobs, but it ends only after all of them: set atLeast={condition.needed} on it"
                )
                yield _problem("unused-quorum", text, resource.guid, severity="warning")

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _waits_of(self, resource: Resource) -> Iterator[_Wait]:
        for action, condition in resource.conditions:
            verb = VERB_OF[action]
            if resource.state < COMES_TO[verb]:
                yield _Wait(resource.guid, verb, f"{verb} of {self._called(resource.guid)}", condition)

    def _of_wait(self, wait: _Wait) -> Iterator[Problem]:
        yield from self._losses(wait)
        for guid in wait.condition.group:
            other = self._resources.get(guid)
            if other is None:
                if not self._facts.are_removed:
                    text = f"{wait.what} waits for {self._called(guid)}, which does not exist"
                    yield _problem("unknown-resource", text, wait.guid, guid)
            elif other.state is ResourceState.NEW and not self._is_coming(other):
                yield self._not_deployed(wait.what, wait.guid, guid)
            else:
                is_state = isinstance(wait.condition, StateCondition)
                for kind, severity, text in (self._of_state if is_state else self._of_metric)(wait, other):
                    yield _problem(kind, f"{wait.what} waits for {text}", wait.guid, guid, severity=severity)
        yield from self._endings(wait)

    def _losses(self, wait: _Wait) -> Iterator[Problem]:
        """Return why a condition can never hold any more."""
        condition = wait.condition
        if condition.at_least is None and isinstance(condition, StateCondition):
            # Members that are still to come are waited for first, but the wait fails with this one all the same.
            for guid in condition.group if condition.state is not ResourceState.FAILED else ():
                member = self._resources.get(guid)
                if member is not None and member.state is ResourceState.FAILED and member.critical:
                    text = f"{wait.what} waits for {self._called(guid)}, which is critical and failed"
                    yield _problem("failed-resource", text, wait.guid, guid)
            return
        want = Want(key=(wait.guid, wait.name), since=0.0, conditions=(condition,))
        found = verdict_on_condition(condition, want, self._resources, 0.0)
        are_known = self._facts.are_removed or all(guid in self._resources for guid in condition.group)
        if isinstance(found, Impossible) and are_known:
            kind: ProblemKind = "impossible-quorum" if condition.at_least is not None else "may-not-come"
            yield _problem(kind, f"{wait.what} can never come: {found.reason}", wait.guid, *condition.group)

    def _not_deployed(self, what: str, guid: int, other: int) -> Problem:
        text = f"{what} waits for {self._called(other)}, which is not deployed yet"
        return _problem("not-deployed", text, guid, other, severity="warning")

    def _of_state(self, wait: _Wait, other: Resource) -> Iterator[tuple[ProblemKind, Severity, str]]:
        wanted = wait.condition.state  # type: ignore[union-attr] # a condition of states
        text = f"{self._called(other.guid)} to be {wanted.name}"
        if other.state >= wanted:
            return
        if wanted in self._nature(other.rtype).skips:
            yield "skipped-state", "warning", f"{text}, which its type skips: the next state counts"
        elif wanted is ResourceState.FAILED:
            yield "not-failed", "hint", f"{text}, which never comes if it succeeds"

    def _of_metric(self, wait: _Wait, other: Resource) -> Iterator[tuple[ProblemKind, Severity, str]]:
        condition, nature = wait.condition, self._nature(other.rtype)
        if not isinstance(condition, MetricCondition) or other.state >= ResourceState.STOPPED:
            return
        if has_held(condition, other):
            return
        name, by = condition.metric.name, nature.measured_by
        text = f"{name} of {self._called(other.guid)}"
        if nature.rtypes.intersection(_MEASURED) and (near := unknown_metric(name)) is not None:
            yield "unknown-metric", "warning", f"{text}, which is not in the table of metrics{near}"
        near_by = (self._resources[guid].rtype for guid in other.connections if guid in self._resources)
        if by is not None and not self._is_any(near_by, by):
            if by:
                yield "not-measured", "warning", f"{text}, which is not measured: connect it to a {' or a '.join(by)}"
            else:
                yield "not-measured", "hint", f"{text}, whose type tells no numbers: call ec.measured for it"
        elif nature.ending == "always" and wait.name != "stop":
            yield "may-not-come", "hint", f"{text}, which may end without it; the wait fails then"

    def _endings(self, wait: _Wait) -> Iterator[Problem]:
        """Return members that must be STOPPED, and that nothing known stops; a call still may."""
        condition = wait.condition
        if not isinstance(condition, StateCondition) or condition.state is not ResourceState.STOPPED:
            return
        members = [self._resources[guid] for guid in condition.group if guid in self._resources]
        lasting = [
            one
            for one in members
            if one.state < ResourceState.STOPPED
            and not _has(ResourceAction.STOP, one)
            and lasts(one, self._resources, self._nature)
        ]
        if len(condition.group) - len(lasting) < condition.needed:
            for one in lasting:
                text = f"{self._called(one.guid)} to be STOPPED, but its type runs until a stop or its release"
                yield _problem("not-stopped", f"{wait.what} waits for {text}", wait.guid, one.guid, severity="warning")


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
    yield f"{plural(len(resources), 'resource')}, {plural(conditions, 'condition')}"
    for number, wave in enumerate(plan.waves, 1):
        parts = [
            f"{kind} {_few([_told(plan, step) for step in wave if step.kind == kind])}"
            for kind in DONE
            if any(step.kind == kind for step in wave)
        ]
        yield f"{number:4}. {'; '.join(parts)}"
    if plan.stuck:
        yield f"never comes to its end: {_few([_name(plan, guid) for guid in plan.stuck])}"
    yield from map(str, plan.problems)
    counts = ((severity, sum(one.severity == severity for one in plan.problems)) for severity in SEVERITIES)
    counted = ", ".join(plural(count, severity) for severity, count in counts if count)
    if plan.errors:
        yield f"{counted}: the experiment cannot work"
    else:
        yield f"no errors, {counted}" if counted else "no problems found"


def _few(words: Sequence[str]) -> str:
    return joined(words, most=_MANY, last=", ")


def _told(plan: ExperimentPlan, step: Step) -> str:
    resource = plan.state.resources[step.guid]
    conditions = [condition for action, condition in resource.conditions if action.name.lower() == step.kind]
    waits = " and ".join(filter(None, (_wait(plan, condition) for condition in conditions)))
    who = _name(plan, step.guid) if plan.facts.names.get(step.guid) else f"{step.guid} {resource.rtype}"
    return f"{who} when {waits}" if waits else who


def _wait(plan: ExperimentPlan, condition: AnyCondition) -> str:
    """Return a condition in words, without removed members, for which nothing waits; "" if all were removed."""
    group = [guid for guid in condition.group if guid in plan.state.resources or not plan.facts.are_removed]
    quorum = "" if condition.at_least is None else f"{condition.at_least} of "
    colon = ":" if isinstance(condition, MetricCondition) else ""
    return f"{quorum}{_few([_name(plan, guid) for guid in group])}{colon} {condition}" if group else ""


def _name(plan: ExperimentPlan, guid: int) -> str:
    return f"{guid} {plan.facts.names.get(guid, '')}".rstrip()
