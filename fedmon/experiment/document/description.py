"""The description of an experiment, from whatever file or program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any, Literal

import msgspec
from immutables import Map
from msgspec.structs import replace

from fedmon.experiment import attributes
from fedmon.experiment.conditions import AnyCondition, StateCondition
from fedmon.experiment.document.conditions import checked_condition
from fedmon.experiment.errors import DescriptionError
from fedmon.experiment.events import VERB_OF, Retry, Verb
from fedmon.experiment.journal import is_folder_name
from fedmon.experiment.situation import Resource, State, Want, WantKey, waits_in_vain
from fedmon.experiment.states import ResourceAction, ResourceState

Policy = Literal["critical", "optional", "quorum"]
Nid = str | int | float | bool
"""The name of a node of a topology."""

MAX_GUID = 2**63 - 1
WORDS = frozenset({"after", "when", "all", "any", "of", "is", "are", "for", "within"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class TopologyNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of a topology, with its addresses and annotations."""

    nid: Nid
    is_source: bool = False
    is_target: bool = False
    ips: tuple[str, ...] = ()
    annotations: dict[str, Nid] = {}


class Net(msgspec.Struct, frozen=True, kw_only=True):
    """The network of an edge, with the addresses of its first and second end."""

    ip1: str
    ip2: str
    mask: str
    network: str
    prefix: int


class TopologyEdge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An edge of a topology."""

    nid1: Nid
    nid2: Nid
    net: Net | None = None
    annotations: dict[str, Nid] = {}


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The graph that an experiment was made from; ``kind`` is the value of a TopologyType."""

    kind: str = "adhoc"
    nodes: tuple[TopologyNode, ...] = ()
    edges: tuple[TopologyEdge, ...] = ()


class SetDescription(msgspec.Struct, frozen=True, kw_only=True):
    """An attribute that is set when a condition holds and the resource is STARTED."""

    attribute: str
    value: Any
    condition: AnyCondition | None = None


class ResourceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One resource: its attributes that differ from their defaults, and its enabled traces.

    ``name`` may be "". The numbers of conditions count within the resource. ``times`` holds Unix seconds, in the order
    in which it came to its states.
    """

    guid: int
    rtype: str
    name: str = ""
    attributes: dict[str, Any] = {}
    connections: tuple[int, ...] = ()
    conditions: tuple[tuple[ResourceAction, AnyCondition], ...] = ()
    sets: tuple[SetDescription, ...] = ()
    traces: tuple[str, ...] = ()
    retry: dict[Verb, Retry] = {}
    timeouts: dict[Verb, float] = {}
    state: ResourceState = ResourceState.NEW
    times: tuple[tuple[ResourceState, float], ...] = ()


class QuorumDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A quorum: ``at_least`` of ``group``, or of all of the type ``rtype``, must not fail."""

    at_least: int
    group: tuple[int, ...] = ()
    rtype: str | None = None


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What ends the experiment: a critical failure, no failure, or a lost quorum."""

    policy: Policy
    quorums: tuple[QuorumDescription, ...] = ()


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A whole experiment; None where the document is silent."""

    exp_id: str
    run_id: str | None = None
    nthreads: int | None = None
    local_dir: str | None = None
    persist: bool = False
    topology: Topology | None = None
    failures: FailurePolicy | None = None
    resources: tuple[ResourceDescription, ...] = ()

    @property
    def names(self) -> dict[str, int]:
        """The guids of the resources with a name."""
        return {resource.name: resource.guid for resource in self.resources if resource.name}


def even(description: Description) -> Description:
    """Return the one form of a description: checked, connections on both sides, conditions by action and numbered.

    Raises DescriptionError.
    """
    for what, name in (("experiment id", description.exp_id), ("run id", description.run_id)):
        if name is not None and not is_folder_name(name):
            raise DescriptionError(
                f"{what} {name!r:.100} cannot name a folder; use up to 100 letters, digits, '-', '_' and '.', "
                "and neither '.' nor '-' first"
            )
    if description.nthreads is not None and description.nthreads < 1:
        raise DescriptionError(f"nthreads is {description.nthreads}, and must be 1 or more")
    neighbours: dict[int, set[int]] = {}
    names: set[str] = set()
    for resource in description.resources:
        _check_resource(resource)
        if resource.guid in neighbours:
            raise DescriptionError(f"two resources have the guid {resource.guid}; each needs its own")
        if resource.name in names:
            raise DescriptionError(f"two resources have the name {resource.name!r}; each needs its own")
        neighbours[resource.guid] = set(resource.connections)
        names.update({resource.name} - {""})
    for resource in description.resources:
        for other in resource.connections:
            if other in neighbours:
                neighbours[other].add(resource.guid)
    return replace(
        description,
        failures=None if description.failures is None else _checked_failures(description.failures, neighbours),
        resources=tuple(_even(each, neighbours[each.guid]) for each in description.resources),
    )


def _check_resource(resource: ResourceDescription) -> None:
    where = f"resource {resource.name or resource.guid}"
    if not 0 <= resource.guid <= MAX_GUID:
        raise DescriptionError(f"guid {resource.guid} is not usable: use 1 to {MAX_GUID}")
    if not resource.rtype:
        raise DescriptionError(f"{where} has no type")
    if resource.name and (not _NAME.fullmatch(resource.name) or resource.name.lower() in WORDS):
        raise DescriptionError(
            f"resource name {resource.name!r:.100} is not usable: use 1 to 64 letters, digits, '_' or '-', beginning "
            f"with a letter, and none of the words {', '.join(sorted(WORDS))}"
        )
    if resource.guid in resource.connections:
        raise DescriptionError(f"{where} is connected to itself")
    for number, (action, condition) in enumerate(resource.conditions, 1):
        if isinstance(condition, StateCondition) and waits_in_vain(resource.guid, action, condition):
            raise DescriptionError(
                f"{where}: {VERB_OF[action]} condition {number} waits for the resource itself to be "
                f"{condition.state.name}, which would last for ever: take it out"
            )


def _checked_failures(policy: FailurePolicy, guids: Collection[int]) -> FailurePolicy:
    if bool(policy.quorums) is not (policy.policy == "quorum"):
        raise DescriptionError(
            f"failures: the policy {policy.policy!r} has {len(policy.quorums)} quorums: only the "
            'policy "quorum" has some, each with at_least'
        )
    quorums = []
    for quorum in policy.quorums:
        group = tuple(sorted(set(quorum.group)))
        if bool(group) is (quorum.rtype is not None):
            raise DescriptionError("failures: a quorum is of resources or of a type: name one of the two")
        unknown = [guid for guid in group if guid not in guids]
        if unknown:
            raise DescriptionError(f"failures: a quorum names resource {unknown[0]}, which does not exist")
        if quorum.at_least < 1 or (group and quorum.at_least > len(group)):
            many = f" of {len(group)}" if group else ""
            raise DescriptionError(f"failures: a quorum of {quorum.at_least}{many} resources is impossible")
        quorums.append(replace(quorum, group=group))
    return replace(policy, quorums=tuple(quorums))


def _even(resource: ResourceDescription, neighbours: Iterable[int]) -> ResourceDescription:
    where = f"resource {resource.name or resource.guid}"
    conditions = [
        (action, checked_condition(condition, where=f"{where}: {VERB_OF[action]} condition"))
        for action, condition in sorted(resource.conditions, key=itemgetter(0))
    ]
    sets = []
    for number, each in enumerate(resource.sets, 1):
        place, condition = f"{where}: set {each.attribute}", each.condition
        if condition is not None:
            condition = replace(checked_condition(condition, where=place), number=number)
        sets.append(replace(each, value=plain(each.value, where=place), condition=condition))
    return replace(
        resource,
        attributes={name: plain(value, where=f"{where}: {name}") for name, value in resource.attributes.items()},
        connections=tuple(sorted(neighbours)),
        conditions=tuple((action, replace(one, number=number)) for number, (action, one) in enumerate(conditions, 1)),
        sets=tuple(sets),
        traces=tuple(sorted(set(resource.traces))),
    )


def plain(value: Any, *, where: str) -> Any:
    """Return a value as documents hold it: tuples become lists. Raises DescriptionError."""
    try:
        return attributes.plain(value)
    except ValueError as error:
        raise DescriptionError(f"{where}: {error}") from error


def as_state(description: Description) -> State:
    """Return the state of an experiment right after everything in it was registered."""
    numbers = itertools.count(1)
    wants: dict[WantKey, Want] = {}
    resources = {}
    for each in description.resources:
        found = [
            Want(
                key=(each.guid, f"set:{next(numbers)}"),
                since=0.0,
                conditions=() if one.condition is None else (one.condition,),
                attribute=(one.attribute, one.value),
            )
            for one in each.sets
        ]
        wants.update((want.key, want) for want in found)
        resources[each.guid] = Resource(
            guid=each.guid,
            rtype=each.rtype,
            critical=each.attributes.get("critical", True) is not False,
            conditions=each.conditions,
            connections=frozenset(each.connections),
            attributes=Map(each.attributes),
            sets=tuple(want.name for want in found),
            timeouts=each.timeouts,
            retry=each.retry,
        )
    return State(resources=Map(resources), wants=Map(wants), numbers=len(wants))


def names_of(description: Description) -> dict[int, str]:
    """Return the names of the resources that have one, by their guids."""
    return {guid: name for name, guid in description.names.items()}
