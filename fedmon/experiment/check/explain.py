"""Explanations of single resources: the cause of a wait, its start, and its longest remaining time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fedmon.common.text import duration, joined
from fedmon.experiment.natures import lasts, nature, needed
from fedmon.experiment.situation import MET, Blocked, Resource, State, Want, awaited, verdict_on_condition
from fedmon.experiment.states import ResourceState

_MAX_CHAIN = 20


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an action waits for.

    ``guids`` are the resources not there yet, ``since`` when the wait began, in seconds as events count them.
    ``left_s`` is the rest of a delay, None if unknown; ``gives_up_in_s`` the rest of its timeout.
    """

    action: str
    guids: tuple[int, ...]
    text: str
    since: float
    left_s: float | None = None
    gives_up_in_s: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a resource is as it is. ``chain`` leads from it to the resource that holds all of them up."""

    guid: int
    title: str
    state: ResourceState
    reason: str
    waiting: tuple[Waiting, ...] = ()
    chain: tuple[int, ...] = ()

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The guids of all resources that it waits for."""
        return tuple(dict.fromkeys(guid for each in self.waiting for guid in each.guids))

    def __repr__(self) -> str:
        lines = [f"{self.title} is {self.state.name}: {self.reason}"]
        lines += [f"  {each.text}" for each in self.waiting]
        if len(self.chain) > 2:
            lines.append(f"  held up by: {' <- '.join(map(str, self.chain))}")
        return "\n".join(lines)


def explain(state: State, guid: int, now: float) -> Explanation:
    """Explain a resource as things stand at ``now``."""
    resource = state.resources[guid]
    waiting = tuple(_waiting(state, resource, now))
    return Explanation(
        guid=guid,
        title=resource.title,
        state=resource.state,
        reason=_reason(state, resource, waiting),
        waiting=waiting,
        chain=_chain(state, guid, now),
    )


def _reason(state: State, resource: Resource, waiting: tuple[Waiting, ...]) -> str:
    if resource.state is ResourceState.FAILED:
        return f"it failed: {resource.reason or 'no reason given'}"
    if resource.state is ResourceState.RELEASED:
        return f"it was released after it failed: {resource.reason}" if resource.reason else "it was released"
    failures = "1 failed attempt" if resource.attempt == 1 else f"{resource.attempt} failed attempts"
    if resource.retrying is not None:
        then = "is not retried, because the experiment was aborted," if state.is_aborted else "is retried"
        return f"its {resource.retrying} {then} after {failures}: {resource.reason}"
    if resource.calling is None or resource.has_ended:
        return _reason_at_rest(state, resource, waiting)
    reason = f"its {resource.calling} is running{f' after {failures}' if resource.attempt else ''}"
    if resource.calling == "deploy" and any(each.guids for each in waiting):
        reason = "its deploy waits for connected resources"
    if resource.waits_for:
        return f"{reason}; it waits for {resource.waits_for}"
    if resource.returned and not resource.scheduled:
        reason += f"; its hook returned without super().do_{resource.calling}(), which reports the state"
    return reason


def _reason_at_rest(state: State, resource: Resource, waiting: tuple[Waiting, ...]) -> str:
    if resource.left_alone:
        return "its process ended, and it was not taken up again: its type has no do_reconnect"
    is_running = resource.state is ResourceState.STARTED
    actions = list(dict.fromkeys(each.action for each in waiting))
    if is_running and actions == ["stop"] and (resource.guid, "stop") not in state.wants:
        return "it runs until the connected resources end"
    if actions:
        return f"waiting to {' and to '.join(actions)}"
    if state.is_aborted:
        return f"the experiment was aborted: {state.level_reason}"
    if resource.group is None and resource.state < ResourceState.STARTED:
        return "deploy was not called for it"
    if is_running:
        is_ending = nature(resource.rtype).ending == "always" and not lasts(resource, state.resources)
        return f"it runs, and {'ends by itself' if is_ending else 'no condition stops it'}"
    return "it ended" if resource.state is ResourceState.STOPPED else "it waits for no known cause"


def _waiting(state: State, resource: Resource, now: float) -> Iterator[Waiting]:
    for name in ("deploy", "start", "stop", *resource.sets):
        want = state.wants.get((resource.guid, name))
        if want is not None:
            yield from _of_want(state, want, now)
    yield from _of_group(state, resource, now)
    yield from _of_needs(state, resource, now)
    yield from _of_verb(state, resource, now)


def _of_want(state: State, want: Want, now: float) -> Iterator[Waiting]:
    action = want.words
    for condition in want.conditions:
        found = verdict_on_condition(condition, want, state.resources, now)
        if found is MET:
            continue
        due = found.due if isinstance(found, Blocked) else None
        left_s = None if due is None else max(0.0, due - now)
        since = want.added.get(condition.number, want.since)
        gives_up_in_s = None if condition.timeout_s is None else max(0.0, since + condition.timeout_s - now)
        guids = tuple(one.guid for one in awaited(condition, want, state.resources, now))
        quorum = "" if condition.at_least is None else f"{condition.needed} of {len(condition.group)}: "
        text = f"{action} has waited {duration(now - since)} for {quorum}{_named(state, guids)} {condition.aim}"
        text += "" if left_s is None else f"; {duration(left_s)} left"
        text += "" if gives_up_in_s is None else f"; gives up in {duration(gives_up_in_s)}"
        yield Waiting(action=action, guids=guids, text=text, since=since, left_s=left_s, gives_up_in_s=gives_up_in_s)


def _of_group(state: State, resource: Resource, now: float) -> Iterator[Waiting]:
    """Return the members that keep a group from starting."""
    group = None if resource.group is None else state.groups.get(resource.group)
    if group is None or not group.wait_all_ready or not group.unready or resource.state is not ResourceState.READY:
        return
    members = filter(None, map(state.resources.get, group.members))
    guids = tuple(one.guid for one in members if one.state < ResourceState.READY)
    since = resource.since(ResourceState.READY) or now
    text = f"start has waited {duration(now - since)} for its group to be READY: {_named(state, guids)}"
    yield Waiting(action="start", guids=guids, text=text, since=since)


def _of_needs(state: State, resource: Resource, now: float) -> Iterator[Waiting]:
    """Return the resources that its deploy or its end waits for by its type."""
    if resource.calling == "deploy":
        verb = "deploy"
    elif resource.state is ResourceState.STARTED and resource.calling in (None, "start"):
        verb = "stop"
    else:
        return
    missing = {
        other.guid: need.state for need, other in needed(resource, verb, state.resources) if other.state < need.state
    }
    if missing:
        since = max((t for _, t in resource.times), default=resource.called)
        wanted = " or ".join(dict.fromkeys(each.name for each in missing.values()))
        text = f"{verb} has waited {duration(now - since)} for {_named(state, tuple(missing))} to be {wanted}"
        yield Waiting(action=verb, guids=tuple(missing), text=text, since=since)


def _of_verb(state: State, resource: Resource, now: float) -> Iterator[Waiting]:
    """Return when a verb that failed is retried, and when a running one times out."""
    # A verb begun by an earlier process has its timeout anew in this one, and its begin is unknown.
    if resource.alarm_at is None or resource.alarm_at < now or resource.state >= ResourceState.FAILED:
        return
    left_s, verb = resource.alarm_at - now, resource.retrying or resource.calling
    if resource.retrying is not None and verb is not None and not state.is_aborted:
        yield Waiting(action=verb, guids=(), text=f"{verb} is retried in {duration(left_s)}", since=now, left_s=left_s)
    elif resource.retrying is None and verb is not None and verb in resource.timeouts:
        began = resource.alarm_at - resource.timeouts[verb]
        text = f"{verb} has run {duration(max(0.0, now - began))}; gives up in {duration(left_s)}"
        yield Waiting(action=verb, guids=(), text=text, since=began, gives_up_in_s=left_s)


def _named(state: State, guids: tuple[int, ...]) -> str:
    found = map(state.resources.__getitem__, guids)
    titles = [f"resource {one.guid} ({one.name or one.rtype}, {one.state.name})" for one in found]
    return joined(titles, most=8, last=", ")


def _chain(state: State, guid: int, now: float) -> tuple[int, ...]:
    """Follow the waits to a resource that waits for no other; a circle ends where it closes."""
    chain = [guid]
    while len(set(chain)) == len(chain) < _MAX_CHAIN:
        waiting = _waiting(state, state.resources[chain[-1]], now)
        following = next((each.guids[0] for each in waiting if each.guids), chain[-1])
        if following == chain[-1]:
            break
        chain.append(following)
    return tuple(chain)
