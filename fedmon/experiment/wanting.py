"""What is to be done with resources: it is done as soon as its conditions hold, or given up."""

from __future__ import annotations

from msgspec.structs import replace

from fedmon.experiment import events
from fedmon.experiment.alarms import verb_limit_of
from fedmon.experiment.change import Change
from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.events import COMES_TO, VERB_OF, Alarm, Assign, Call, Verb
from fedmon.experiment.situation import Group, Resource, Want, WantKey
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from fedmon.experiment.verdicts import Blocked, Doomed, Met, Verdict, may_now, verdict_on

_ACTIONS = {verb: action for action, verb in VERB_OF.items()}


def deploy_asked(change: Change, event: events.DeployAsked) -> None:
    """Have resources deployed, and started when their group is ready."""
    group = change.groups.get(event.group)
    old = () if group is None else group.members
    known = set(old)
    fresh = tuple(guid for guid in event.guids if guid not in known and guid in change.resources)
    unready = 0 if group is None else group.unready
    unready += sum(change.resources[guid].state < ResourceState.READY for guid in fresh)
    wait_all_ready = event.wait_all_ready if group is None else group.wait_all_ready
    change.groups[event.group] = group = Group(members=(*old, *fresh), unready=unready, wait_all_ready=wait_all_ready)
    for guid in fresh:
        resource = change.resources[guid]
        leave_group(change, resource)
        change.resources[guid] = resource = replace(resource, group=event.group)
        begin(change, resource, "deploy")
    if not wait_all_ready or not unready:
        start_members(change, fresh)


def leave_group(change: Change, resource: Resource) -> None:
    """Have a group wait no longer for a resource that goes elsewhere."""
    if resource.group is None:
        return
    group = change.groups[resource.group]
    left = tuple(guid for guid in group.members if guid != resource.guid)
    change.groups[resource.group] = replace(group, members=left)
    if resource.state < ResourceState.READY:
        count_unready(change, resource.group, -1)


def count_unready(change: Change, number: int, by: int) -> None:
    """Count who of a group is below READY; when nobody is, all are started."""
    group = change.groups[number]
    group = change.groups[number] = replace(group, unready=group.unready + by)
    if not group.unready and group.wait_all_ready and change.level is FailureLevel.OK:
        start_members(change, group.members)


def start_members(change: Change, guids: tuple[int, ...]) -> None:
    """Have members of a group started, and stopped where a condition says when."""
    for guid in guids:
        resource = change.resources.get(guid)
        if resource is None or resource.state >= ResourceState.FAILED:
            continue
        begin(change, resource, "start")
        if resource.conditions and ResourceAction.STOP in [action for action, _ in resource.conditions]:
            change.to_stop.append(guid)


def begin_stops(change: Change) -> None:
    """Begin to want those stopped who were started."""
    guids, change.to_stop = change.to_stop, []
    for guid in guids:
        resource = change.resources.get(guid)
        if resource is not None and resource.state < ResourceState.FAILED:
            begin(change, resource, "stop")


def begin(change: Change, resource: Resource, name: Verb) -> None:
    """Begin to want something of a resource, unless that is wanted already."""
    key = (resource.guid, name)
    if key in change.wants or change.level is not FailureLevel.OK:
        return
    conditions: tuple[AnyCondition, ...] = ()
    if resource.conditions:
        kind = _ACTIONS[name]
        conditions = tuple([condition for action, condition in resource.conditions if action is kind])
    if not conditions and may_now(name, resource.state):
        call(change, resource, name)
        return
    wanted = Want(key=key, since=change.now, conditions=conditions)
    found = verdict_on(wanted, change.resources, change.now)
    if isinstance(found, Blocked):
        change.add_want(wanted, found)
    else:
        _settle(change, wanted, resource, found)


def action_wanted(change: Change, event: events.ActionWanted) -> None:
    """Want one thing done with a resource."""
    resource = change.resources.get(event.guid)
    if resource is not None:
        begin(change, resource, VERB_OF[event.action])


def release_asked(change: Change, event: events.ReleaseAsked) -> None:
    """Have resources released; nothing holds that back."""
    for guid in event.guids:
        resource = change.resources.get(guid)
        if resource is not None and resource.state is not ResourceState.RELEASED:
            change.drop_wants(resource)
            call(change, change.resources[guid], "release")


def judge(change: Change, key: WantKey) -> None:
    """Do what is wanted, give it up, or note what it waits for."""
    want = change.wants.get(key)
    if want is None:
        return
    found = verdict_on(want, change.resources, change.now)
    if isinstance(found, Blocked):
        change.block(want, found)
        return
    change.end_want(want)
    resource = change.resources.get(want.guid)
    if resource is not None:
        _settle(change, want, resource, found)


def _settle(change: Change, want: Want, resource: Resource, found: Verdict) -> None:
    name = want.name
    if isinstance(found, Doomed):
        give_up(change, resource, f"{name.partition(':')[0]} cannot be done: {found.reason}")
    elif not isinstance(found, Met):
        return
    elif want.attribute is not None:
        attribute, value = want.attribute
        change.actions.append(Assign(guid=resource.guid, name=attribute, value=value))
    else:
        call(change, resource, name)  # type: ignore[arg-type] # such a want is named after its verb


def call(change: Change, resource: Resource, verb: Verb, reason: str = "") -> None:
    """Have a verb called, and ended in time; one without code has no need of that."""
    if verb in resource.plain:
        if resource.retrying is not None:
            change.resources[resource.guid] = replace(resource, retrying=None)
        change.due.append((resource.guid, COMES_TO[verb], reason))
        return
    timeout_s = resource.timeouts.get(verb)
    ends_at = None if timeout_s is None else change.now + timeout_s
    change.resources[resource.guid] = replace(resource, calling=verb, retrying=None, alarm_at=ends_at)
    change.actions.append(Call(guid=resource.guid, verb=verb, reason=reason))
    if ends_at is not None:
        change.actions.append(Alarm(timer=verb_limit_of(resource.guid, verb), at=ends_at))


def give_up(change: Change, resource: Resource, reason: str) -> None:
    """Have a resource fail."""
    if resource.state < ResourceState.FAILED:
        change.drop_wants(resource)
        call(change, change.resources[resource.guid], "fail", reason)
