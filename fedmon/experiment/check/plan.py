"""A dry run of an experiment: the order of its steps, and the problems that would stop them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

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
    waits_of,
)
from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import COMES_TO, VERB_OF
from fedmon.experiment.natures import is_kind, lasts, needed
from fedmon.experiment.situation import Doomed, Resource, State, Want, has_held, verdict_on_condition
from fedmon.experiment.states import ResourceAction, ResourceState

_MEASURED = frozenset({"fedmon::Node", "fedmon::Monitor"})
"""The types whose metrics are those of the table; others may report numbers of any name."""
_DERIVED = "host_memory_used_ratio"
"""Computed by a Monitor from two metrics of the table."""
_NEAR = 0.85
"""Names that are less alike than this are not typing errors, but metrics of plug-ins and users."""
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

    def with_problems(self, problems: Iterable[Problem]) -> ExperimentPlan:
        """Return the plan with more problems, most severe first."""
        ranked = sorted((*self.problems, *problems), key=lambda problem: SEVERITIES.index(problem.severity))
        return replace(self, problems=tuple(ranked))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def plan(
    state: State, facts: Facts | None = None, *, deploying: Collection[int] | None = None, wait_all_ready: bool = True
) -> ExperimentPlan:
    """Plan the rest of an experiment without doing any of it; problems are returned, not raised.

    ``deploying`` are the resources about to be deployed as one group (default: all that are in none); others in no
    group count as deployed later.
    """
    facts = Facts() if facts is None else facts
    graph = Dependencies(state, facts.nature, deploying=deploying, wait_all_ready=wait_all_ready)
    circles = graph.circles(facts.names)
    hops = {hop for circle in circles for hop in zip(circle.guids, circle.guids[1:], strict=False)}
    checked = Checks(state, facts, graph.is_coming).all()
    # A circle tells already why a resource is not stopped.
    problems = [each for each in checked if each.kind != "not-stopped" or each.guids not in hops]
    if any(_has(ResourceAction.STOP, one) and facts.nature(one.rtype).ending == "maybe" for one in _all(state)):
        wary = Dependencies(
            state, facts.nature, deploying=deploying, wait_all_ready=wait_all_ready, none_may_end=True
        ).circles(facts.names)
        text = "{}; only a resource that ends by itself leads out of it"
        more = [replace(each, severity="warning", text=text.format(each.text)) for each in wary]
        problems += [each for each in more if each.guids not in {circle.guids for circle in circles}]
    stopping = {one.guid for one in _all(state) if _has(ResourceAction.STOP, one)}
    waves = [
        tuple(step for step in wave if step.kind != "stop" or step.guid in stopping)
        for wave in (() if state.is_aborted else graph.waves)
    ]
    found = ExperimentPlan(
        state=state,
        facts=facts,
        waves=tuple(filter(None, waves)),
        stuck=tuple(sorted({step.guid for step in graph.stuck if step.kind in DONE})),
        problems=(),
    )
    return found.with_problems([*problems, *circles, *facts.problems])


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
    if known. Raises ImpossiblePlanError for missing parts, waits for lost resources, and circles.
    """
    facts = Facts(names=names or {}, are_removed=True)
    chosen = [one for one in map(state.resources.get, deploying) if one is not None]
    found = list(Checks(state, facts).hopeless(chosen))
    if found:
        raise ImpossiblePlanError(found)
    # A new circle leads through a member of the group, or through a resource that another one waits for.
    is_alone = asked_for is not None and group is None and asked_for.isdisjoint(deploying)
    if not is_alone or any(one.connections for one in chosen):
        refuse_circles(state, facts, deploying=deploying, group=group, wait_all_ready=wait_all_ready)


def unknown_metric(name: str) -> str | None:
    """Return None if a metric, or a pattern with * and ?, is known; else the known name that it resembles, or ""."""
    from fedmon.common.metrics.series import metric_name
    from fedmon.common.metrics.table import METRICS

    known = [*METRICS, _DERIVED]
    wanted = metric_name(name)
    if any(fnmatchcase(each, wanted) for each in known):
        return None
    return next(iter(difflib.get_close_matches(wanted, known, n=1, cutoff=_NEAR)), "")


def _all(state: State) -> Iterable[Resource]:
    return state.resources.values()


def _has(action: ResourceAction, resource: Resource) -> bool:
    return any(mine is action for mine, _ in resource.conditions)


# --- single checks ----------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A problem, apart from the resource that has it; ``text`` goes on after that resource."""

    kind: ProblemKind
    text: str
    guids: tuple[int, ...] = ()
    severity: Severity = "error"


class Checks:
    """Checks an experiment piece by piece. ``is_coming`` tells whether a resource is deployed, or about to be."""

    def __init__(self, state: State, facts: Facts, is_coming: Callable[[Resource], bool] = lambda _resource: True):
        self._state, self._resources = state, state.resources
        self._facts, self._nature, self._is_coming = facts, facts.nature, is_coming

    def all(self) -> Iterator[Problem]:
        """Return all problems but circles."""
        if self._state.is_aborted:
            text = f"the experiment was aborted and starts nothing more: {self._state.level_reason}"
            yield Problem(kind="aborted", text=text)
        for resource in _all(self._state):
            yield from self._of(resource, self._of_type(resource))
        yield from self.connections()
        yield from self._of_waits(_all(self._state), self._of_condition)
        for resource in _all(self._state):
            yield from self._of(resource, self._needs(resource))
            yield from self._of(resource, self._quorums(resource))

    def hopeless(self, resources: Iterable[Resource]) -> Iterator[Problem]:
        """Return the problems with which the deployment of resources must fail, as far as that is cheap to tell."""
        for resource in resources:
            found = self._missing_parts(resource, resource.attributes)
            yield from self._of(resource, (each for each in found if each.severity == "error"))
        yield from self._of_waits(resources, self._losses)

    def connections(self) -> Iterator[Problem]:
        """Return the connections that one side does not have, or would refuse."""
        for resource in _all(self._state):
            yield from self._of(
                resource, (each for guid in sorted(resource.connections) for each in self._connection(resource, guid))
            )

    def _connection(self, resource: Resource, guid: int) -> Iterator[_Found]:
        accepts, who, whom = self._facts.accepts, self._called(resource.guid), self._called(guid)
        other = self._resources.get(guid)
        if other is None:
            yield _Found("unknown-resource", f"{who} is connected to {whom}, which does not exist", (guid,))
        elif resource.guid not in other.connections:
            text = f"{who} is connected to {whom}, but {whom} not to {who}"
            yield _Found("one-sided-connection", text, (guid,))
        elif accepts is not None and resource.guid < guid:
            takes = accepts(resource.guid, guid), accepts(guid, resource.guid)
            if not any(takes):
                yield _Found("refused-connection", f"{who} and {whom} refuse a connection to each other", (guid,))
            elif not all(takes):
                one, two = (who, whom) if takes[0] else (whom, who)
                text = f"{one} takes a connection to {two}, but {two} refuses it"
                yield _Found("one-sided-connection", text, (guid,))

    def _of(self, resource: Resource, found: Iterable[_Found], what: str = "") -> Iterator[Problem]:
        for kind, text, guids, severity in found:
            yield Problem(kind=kind, severity=severity, guids=(resource.guid, *guids), text=f"{what}{text}")

    def _called(self, guid: int) -> str:
        return called(guid, self._facts.names, self._state)

    # --- what a resource lacks ----------------------------------------------------------------------------------------

    def _of_type(self, resource: Resource) -> Iterator[_Found]:
        rtypes, attributes = self._facts.rtypes, self._facts.attributes
        if rtypes is not None and resource.rtype not in rtypes:
            text = f"{self._called(resource.guid)} has an unknown type; known: {', '.join(sorted(rtypes))}"
            yield _Found("unknown-type", text)
        if attributes is not None:
            given = attributes.get(resource.guid, {})
            yield from self._missing_parts(resource, given)
            yield from self._patterns(resource, given)

    def _missing_parts(self, resource: Resource, given: Mapping[str, Any]) -> Iterator[_Found]:
        """Return what a resource lacks; a condition on its deploy may still bring it, so that is a warning."""
        mine, who = self._nature(resource.rtype), self._called(resource.guid)
        if resource.state >= ResourceState.READY:
            return
        severity: Severity = "warning" if _has(ResourceAction.DEPLOY, resource) else "error"
        for name in mine.attributes:
            if given.get(name) in (None, "") and resource.attributes.get(name) in (None, ""):
                is_trace = name == "traceName" and any(each.endswith("Collector") for each in mine.rtypes)
                kind: ProblemKind = "collector-without-trace" if is_trace else "missing-part"
                yield _Found(kind, f"{who} has no {name}: set the attribute", (), severity)
        for rtypes in mine.connections:
            if not self._has_neighbour(resource, rtypes):
                yield _Found("missing-part", f"{who} has no {' or '.join(rtypes)}: connect it to one", (), severity)

    def _has_neighbour(self, resource: Resource, rtypes: Collection[str]) -> bool:
        others = [self._resources[guid].rtype for guid in resource.connections if guid in self._resources]
        return any(is_kind(other, rtype, self._nature) for other in others for rtype in rtypes)

    def _patterns(self, resource: Resource, given: Mapping[str, Any]) -> Iterator[_Found]:
        """Return the patterns of a Monitor that match no metric."""
        patterns = given.get("metrics") or resource.attributes.get("metrics")
        if not is_kind(resource.rtype, "fedmon::Monitor", self._nature) or not isinstance(patterns, list | tuple):
            return
        if any(one.kind == "wrong-attribute" and resource.guid in one.guids for one in self._facts.problems):
            return  # which names the metric
        for pattern in patterns:
            if isinstance(pattern, str) and (near := unknown_metric(pattern)) is not None:
                text = f"{self._called(resource.guid)} records {pattern!r}, {_not_in_table(near)}"
                yield _Found("unknown-metric", text, (), "warning")

    # --- what a resource waits for by its type ------------------------------------------------------------------------

    def _needs(self, resource: Resource) -> Iterator[_Found]:
        """Return resources that the verbs still to come need: lost, not deployed, or inputs that nothing waits for."""
        is_coming = resource.state < ResourceState.FAILED and self._is_coming(resource)
        for verb in VERB_OF.values():
            if resource.state >= COMES_TO[verb]:
                continue
            for need, other in needed(resource, verb, self._resources, self._nature):
                what, whom = f"{verb} of {self._called(resource.guid)} needs", self._called(other.guid)
                if is_coming and other.state is ResourceState.NEW and not self._is_coming(other):
                    yield _Found("not-deployed", f"{what} {whom}, which is not deployed yet", (other.guid,), "warning")
                elif is_coming and other.state >= ResourceState.FAILED and other.critical and verb != "stop":
                    text = f"{what} {whom}, which is {other.state.name}"
                    yield _Found("failed-resource", text, (other.guid,), "warning")
                if need.attribute and other.state < need.state and other.guid not in self._awaited(resource):
                    text = f"{what} {whom}, its {need.attribute}, to be {need.state.name}: add a condition for that"
                    yield _Found("missing-part", text, (other.guid,), "warning")

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

    def _quorums(self, resource: Resource) -> Iterator[_Found]:
        """Return quorums on the start of an Aggregator, which all the same ends only after all of its jobs."""
        if not is_kind(resource.rtype, "fedmon::Aggregator", self._nature) or resource.attributes.get("atLeast"):
            return
        awaited = {other.guid for _, other in needed(resource, "stop", self._resources, self._nature)}
        for action, condition in resource.conditions:
            if action is ResourceAction.START and condition.needed < len(awaited.intersection(condition.group)):
                text = (
                    f"start of {self._called(resource.guid)} waits for {condition.needed} of {len(condition.group)} "
                    f"jobs, but it ends only after all of them: set atLeast={condition.needed} on it"
                )
                yield _Found("unused-quorum", text, (), "warning")

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _of_waits(
        self, resources: Iterable[Resource], check: Callable[[AnyCondition, str], Iterator[_Found]]
    ) -> Iterator[Problem]:
        """Check the conditions of what is still to be done; one that many resources share is checked once."""
        checked: dict[tuple[int, str], list[_Found]] = {}
        for resource in resources:
            for name, what, condition in waits_of(resource, self._state):
                if any(verb == name and resource.state >= COMES_TO[verb] for verb in VERB_OF.values()):
                    continue
                key = (id(condition), name)
                if key not in checked:
                    checked[key] = list(check(condition, name))
                yield from self._of(resource, checked[key], f"{what} of {self._called(resource.guid)} ")

    def _of_condition(self, condition: AnyCondition, name: str) -> Iterator[_Found]:
        yield from self._losses(condition, name)
        for guid in condition.group:
            other, whom = self._resources.get(guid), self._called(guid)
            if other is None:
                if not self._facts.are_removed:
                    yield _Found("unknown-resource", f"waits for {whom}, which does not exist", (guid,))
            elif other.state is ResourceState.NEW and not self._is_coming(other):
                yield _Found("not-deployed", f"waits for {whom}, which is not deployed yet", (guid,), "warning")
            elif isinstance(condition, StateCondition):
                yield from self._of_state(condition, other)
            else:
                yield from self._of_metric(condition, other, name)
        if isinstance(condition, StateCondition) and condition.state is ResourceState.STOPPED:
            yield from self._endings(condition)

    def _losses(self, condition: AnyCondition, name: str) -> Iterator[_Found]:
        """Return why a condition can never hold any more."""
        if condition.at_least is None and isinstance(condition, StateCondition):
            # Members that are still to come are waited for first, but the wait fails with this one all the same.
            for guid in condition.group if condition.state is not ResourceState.FAILED else ():
                member = self._resources.get(guid)
                if member is not None and member.state is ResourceState.FAILED and member.critical:
                    text = f"waits for {self._called(guid)}, which is critical and failed"
                    yield _Found("failed-resource", text, (guid,))
            return
        want = Want(key=(0, name), since=0.0, conditions=(condition,))
        found = verdict_on_condition(condition, want, self._resources, 0.0)
        are_known = self._facts.are_removed or all(guid in self._resources for guid in condition.group)
        if isinstance(found, Doomed) and are_known:
            kind: ProblemKind = "impossible-quorum" if condition.at_least is not None else "may-not-come"
            yield _Found(kind, f"can never come: {found.reason}", condition.group)

    def _of_state(self, condition: StateCondition, other: Resource) -> Iterator[_Found]:
        text = f"waits for {self._called(other.guid)} to be {condition.state.name}"
        if other.state >= condition.state:
            return
        if condition.state in self._nature(other.rtype).skips:
            text = f"{text}, which its type skips: the next state counts"
            yield _Found("skipped-state", text, (other.guid,), "warning")
        elif condition.state is ResourceState.FAILED:
            yield _Found("not-failed", f"{text}, which never comes if it succeeds", (other.guid,), "hint")

    def _of_metric(self, condition: MetricCondition, other: Resource, name: str) -> Iterator[_Found]:
        if other.state >= ResourceState.STOPPED or has_held(condition, other):
            return
        nature, metric = self._nature(other.rtype), condition.metric.name
        text, guids = f"waits for {metric} of {self._called(other.guid)}", (other.guid,)
        if nature.rtypes & _MEASURED and (near := unknown_metric(metric)) is not None:
            yield _Found("unknown-metric", f"{text}, {_not_in_table(near)}", guids, "warning")
        if nature.measured_by is not None and not self._has_neighbour(other, nature.measured_by):
            if nature.measured_by:
                to = " or a ".join(nature.measured_by)
                yield _Found("not-measured", f"{text}, which is not measured: connect it to a {to}", guids, "warning")
            else:
                text = f"{text}, whose type reports no numbers: call ec.measured for it"
                yield _Found("not-measured", text, guids, "hint")
        elif nature.ending == "always" and name != "stop":
            yield _Found("may-not-come", f"{text}, which may end without it; the wait fails then", guids, "hint")

    def _endings(self, condition: StateCondition) -> Iterator[_Found]:
        """Return members that must be STOPPED, and that nothing known stops; a call still may."""
        lasting = [
            one
            for one in filter(None, map(self._resources.get, condition.group))
            if one.state < ResourceState.STOPPED
            and not _has(ResourceAction.STOP, one)
            and lasts(one, self._resources, self._nature)
        ]
        for one in lasting if len(condition.group) - len(lasting) < condition.needed else ():
            text = f"waits for {self._called(one.guid)} to be STOPPED, but its type runs until a stop or its release"
            yield _Found("not-stopped", text, (one.guid,), "warning")


def _not_in_table(near: str) -> str:
    return f"which is not in the table of metrics; {f'did you mean {near!r}?' if near else 'see docs/metrics.md'}"


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


def _few(words: Sequence[str]) -> str:
    return joined(words, most=_MANY, last=", ")


def _told(plan: ExperimentPlan, step: Step) -> str:
    resource = plan.state.resources[step.guid]
    conditions = [condition for action, condition in resource.conditions if VERB_OF[action] == step.kind]
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
