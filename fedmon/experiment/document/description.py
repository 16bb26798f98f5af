"""What an experiment consists of, whatever file or program it comes from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any, Literal

import msgspec
from immutables import Map
from msgspec.structs import replace

from fedmon.experiment.conditions import AnyCondition, StateCondition
from fedmon.experiment.document.condition_text import checked_condition
from fedmon.experiment.document.errors import (
    ConditionTextError,
    DescriptionError,
    DuplicateResourceError,
    ExperimentIdError,
    UnknownMemberError,
)
from fedmon.experiment.document.values import plain
from fedmon.experiment.events import VERB_OF, Retry, Verb
from fedmon.experiment.journal import is_folder_name
from fedmon.experiment.situation import Resource, State, Want
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verdicts import waits_in_vain

Policy = Literal["critical", "optional", "quorum"]
Nid = str | int | float | bool
"""What names a node of a topology."""

MAX_ID_CHARACTERS = 100
MAX_GUID = 2**63 - 1
WORDS = frozenset({"after", "when", "all", "any", "of", "is", "are", "for", "within"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class TopologyNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a topology: whether data comes from it or goes to it, its addresses, and what was noted on it."""

    nid: Nid
    is_source: bool = False
    is_target: bool = False
    ips: tuple[str, ...] = ()
    annotations: dict[str, Nid] = {}


class Net(msgspec.Struct, frozen=True, kw_only=True):
    """The network of an edge: the addresses of its first and second end, and what they are part of."""

    ip1: str
    ip2: str
    mask: str
    network: str
    prefix: int


class TopologyEdge(msgspec.Struct, frozen=True, kw_only=True):
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
    """An attribute that is to be set as soon as a condition holds and the resource is STARTED."""

    attribute: str
    value: Any
    condition: AnyCondition | None = None


class ResourceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One resource. ``attributes`` are those that differ from their defaults, ``traces`` those that are enabled.

    ``name`` is what a document calls it, "" where it has none. The numbers of conditions count within the resource.
    ``times`` holds Unix seconds, in the order in which it came to its states.
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
    """How many resources must not fail: ``at_least`` of ``group``, or of all of the type ``rtype``."""

    at_least: int
    group: tuple[int, ...] = ()
    rtype: str | None = None


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What failures mean: the end when a critical resource fails, nothing, or the end when a quorum is lost."""

    policy: Policy
    quorums: tuple[QuorumDescription, ...] = ()


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A whole experiment; null is what the document does not say."""

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
        """The guids of those resources that have a name."""
        return {resource.name: resource.guid for resource in self.resources if resource.name}


def checked_exp_id(text: str, *, what: str = "experiment id") -> str:
    """Return an id that is the name of one folder. Raises ExperimentIdError."""
    if not is_folder_name(text):
        shown = repr(text) if len(repr(text)) <= MAX_ID_CHARACTERS else f"{repr(text)[:60]}..."
        wrong = "it is empty" if not text.strip() else "it has parts of a path" if re.search(r"[/\\]", text) else ""
        raise ExperimentIdError(
            f"{what} {shown} cannot name a folder{wrong and f': {wrong}'}; take up to {MAX_ID_CHARACTERS} letters, "
            "digits, '-', '_' and '.', no '.' and no '-' first"
        )
    return text


def checked_name(text: str) -> str:
    """Return a name that can stand in the text of a condition. Raises DescriptionError."""
    if not _NAME.fullmatch(text) or text.lower() in WORDS:
        raise DescriptionError(
            f"resource name {text!r} is not usable: use 1 to 64 letters, digits, '_' or '-', beginning with a letter, "
            f"and none of the words {', '.join(sorted(WORDS))}"
        )
    return text


def even(description: Description) -> Description:
    """Return the one form of a description: checked, connections on both sides, conditions by action and counted.

    Raises DescriptionError, of which a subclass says what is wrong.
    """
    checked_exp_id(description.exp_id)
    if description.run_id is not None:
        checked_exp_id(description.run_id, what="run id")
    if description.nthreads is not None and description.nthreads < 1:
        raise DescriptionError(f"nthreads is {description.nthreads}, and must be 1 or more")
    neighbours: dict[int, set[int]] = {}
    names = set()
    for resource in description.resources:
        _check_resource(resource)
        if resource.guid in neighbours:
            raise DuplicateResourceError(f"two resources have the guid {resource.guid}; each needs one of its own")
        if resource.name and resource.name in names:
            raise DuplicateResourceError(f"two resources have the name {resource.name!r}; each needs one of its own")
        neighbours[resource.guid] = set(resource.connections)
        names.add(resource.name)
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
    where = f"resource {resource.guid}"
    if not 0 <= resource.guid <= MAX_GUID:
        raise DescriptionError(f"guid {resource.guid} is not usable: use 1 to {MAX_GUID}")
    if not resource.rtype:
        raise DescriptionError(f"{where} has no type")
    if resource.name:
        checked_name(resource.name)
    if resource.guid in resource.connections:
        raise DescriptionError(f"{where} is connected to itself")
    for number, (action, condition) in enumerate(resource.conditions, 1):
        if isinstance(condition, StateCondition) and waits_in_vain(resource.guid, action, condition):
            raise ConditionTextError(
                f"resource {resource.name or resource.guid}: {VERB_OF[action]} condition {number} waits for the "
                f"resource itself to be {condition.state.name}: that would be for ever"
            )


def _checked_failures(policy: FailurePolicy, guids: Collection[int]) -> FailurePolicy:
    """Return a policy with each member of a quorum once. Raises DescriptionError."""
    where = "failures"
    if policy.quorums and policy.policy != "quorum":
        raise DescriptionError(f"{where}: the policy {policy.policy!r} has no quorum")
    if policy.policy == "quorum" and not policy.quorums:
        raise DescriptionError(f"{where}: the policy 'quorum' needs at_least, and whom it is of")
    quorums = []
    for quorum in policy.quorums:
        group = tuple(sorted(set(quorum.group)))
        if bool(group) is (quorum.rtype is not None):
            raise DescriptionError(f"{where}: a quorum is of resources or of a type: name one of the two")
        unknown = [guid for guid in group if guid not in guids]
        if unknown:
            raise UnknownMemberError(f"{where}: a quorum names resource {unknown[0]}, which there is not")
        if quorum.at_least < 1 or (group and quorum.at_least > len(group)):
            many = f" of {len(group)}" if group else ""
            raise DescriptionError(f"{where}: a quorum of {quorum.at_least}{many} resources can never be there")
        quorums.append(replace(quorum, group=group))
    return replace(policy, quorums=tuple(quorums))


def _even(resource: ResourceDescription, neighbours: Iterable[int]) -> ResourceDescription:
    where = f"resource {resource.guid}"
    return replace(
        resource,
        attributes={name: plain(value, where=f"{where}: {name}") for name, value in resource.attributes.items()},
        connections=tuple(sorted(neighbours)),
        conditions=tuple(
            (action, replace(checked_condition(condition, where=f"{where}: {action.name} condition"), number=number))
            for number, (action, condition) in enumerate(sorted(resource.conditions, key=itemgetter(0)), 1)
        ),
        sets=tuple(
            replace(
                each,
                value=plain(each.value, where=f"{where}: {each.attribute}"),
                condition=None
                if each.condition is None
                else replace(checked_condition(each.condition, where=f"{where}: set {each.attribute}"), number=number),
            )
            for number, each in enumerate(resource.sets, 1)
        ),
        traces=tuple(sorted(set(resource.traces))),
    )


def as_state(description: Description) -> State:
    """Return an experiment as it would be right after everything in it was registered."""
    numbers = itertools.count(1)
    resources = {each.guid: _resource(each) for each in description.resources}
    wants = {}
    for each in description.resources:
        for one in each.sets:
            key = (each.guid, f"set:{next(numbers)}")
            conditions = () if one.condition is None else (one.condition,)
            wants[key] = Want(key=key, since=0.0, conditions=conditions, attribute=(one.attribute, one.value))
    return State(resources=Map(resources), wants=Map(wants), numbers=next(numbers) - 1)


def attributes_of(description: Description) -> dict[int, dict[str, Any]]:
    """Return the attributes of each resource by its guid."""
    return {each.guid: each.attributes for each in description.resources}


def names_of(description: Description) -> dict[int, str]:
    """Return the names of those resources that have one by their guids."""
    return {guid: name for name, guid in description.names.items()}


def _resource(each: ResourceDescription) -> Resource:
    critical = each.attributes.get("critical", True)
    return Resource(
        guid=each.guid,
        rtype=each.rtype,
        critical=critical is not False,
        conditions=each.conditions,
        connections=frozenset(each.connections),
        attributes=Map(each.attributes),
        sets=("set",) if each.sets else (),
        timeouts=each.timeouts,
        retry=each.retry,
    )
