"""The description of an experiment, from a file or a program; the names of fields are the keys of TOML files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from fedmon.experiment.attributes import plain
from fedmon.experiment.conditions import AnyCondition, checked_condition
from fedmon.experiment.errors import DescriptionError, placed
from fedmon.experiment.events import VERB_OF, Retry, Verb
from fedmon.experiment.journal import check_folder_name
from fedmon.experiment.states import ResourceAction, ResourceState

Nid = str | int | float | bool
"""The name of a node of a topology."""

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


class SetDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attribute that is set when a condition holds and the resource is STARTED."""

    attribute: str
    value: Any
    condition: AnyCondition | None = msgspec.field(name="when", default=None)


class ResourceDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One resource: its attributes that differ from their defaults, and its enabled traces.

    ``name`` may be "". The numbers of conditions count within the resource. ``state`` and ``times``, in Unix seconds,
    are written, and not read.
    """

    name: str = ""
    guid: int
    rtype: str = msgspec.field(name="type")
    connections: tuple[int, ...] = msgspec.field(name="connect", default=())
    # Three keys of a document; this name is none, but tells them in errors.
    conditions: tuple[tuple[ResourceAction, AnyCondition], ...] = msgspec.field(name="deploy, start, stop", default=())
    traces: tuple[str, ...] = ()
    sets: tuple[SetDescription, ...] = msgspec.field(name="set", default=())
    state: ResourceState = ResourceState.NEW
    times: tuple[tuple[ResourceState, float], ...] = ()
    timeouts: dict[Verb, float] = {}
    retry: dict[Verb, Retry] = {}
    attributes: dict[str, Any] = {}


class QuorumDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A quorum: ``at_least`` of ``group``, or of all of the type ``rtype``, must not fail."""

    at_least: int
    group: tuple[int, ...] = msgspec.field(name="of", default=())
    rtype: str | None = None

    def __post_init__(self) -> None:
        many = len(set(self.group))
        if bool(many) is (self.rtype is not None):
            raise ValueError("a quorum is of resources or of a type: name one of the two")
        if self.at_least < 1 or (many and self.at_least > many):
            of = f" of {many}" if many else ""
            raise ValueError(f"a quorum of {self.at_least}{of} resources is impossible")


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The failure that ends the experiment: a critical one, none, or a lost quorum."""

    policy: Literal["critical", "optional", "quorum"]
    quorums: tuple[QuorumDescription, ...] = ()


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole experiment; None if the document is silent."""

    exp_id: str = msgspec.field(name="id")
    run_id: str | None = None
    max_running: Annotated[int, msgspec.Meta(ge=1)] | None = None
    local_dir: str | None = None
    persist: bool = False
    topology: Topology | None = msgspec.field(name="[topology]", default=None)
    failures: FailurePolicy | None = msgspec.field(name="[failures]", default=None)
    resources: tuple[ResourceDescription, ...] = msgspec.field(name="[[resource]]", default=())


def even(description: Description) -> Description:
    """Return the one form of a description: checked, connections on both sides, conditions by action and numbered.

    Raises DescriptionError.
    """
    for what, name in (("experiment id", description.exp_id), ("run id", description.run_id)):
        if name is not None:
            check_folder_name(what, name)
    resources = description.resources
    for what, given in (("guid", [one.guid for one in resources]), ("name", [one.name for one in resources])):
        for each, count in Counter(given).items():
            if count > 1 and each != "":
                raise DescriptionError(f"two resources have the {what} {each!r}; each needs its own")
    neighbours = {resource.guid: set(resource.connections) for resource in resources}
    for resource in resources:
        for other in resource.connections:
            neighbours.get(other, set()).add(resource.guid)
    return replace(
        description,
        failures=None if description.failures is None else _checked_failures(description.failures, neighbours),
        resources=tuple(_checked_resource(each, neighbours[each.guid]) for each in resources),
    )


def _checked_failures(policy: FailurePolicy, guids: Collection[int]) -> FailurePolicy:
    if bool(policy.quorums) is not (policy.policy == "quorum"):
        raise DescriptionError(
            f"failures: the policy {policy.policy!r} has {len(policy.quorums)} quorums: only the "
            'policy "quorum" has some, each with at_least'
        )
    quorums = []
    for quorum in policy.quorums:
        if unknown := [guid for guid in quorum.group if guid not in guids]:
            raise DescriptionError(f"failures: a quorum names resource {unknown[0]}, which does not exist")
        quorums.append(replace(quorum, group=tuple(sorted(set(quorum.group)))))
    return replace(policy, quorums=tuple(quorums))


def check_name(name: str) -> None:
    """Raise DescriptionError for a resource's name that no document can hold; it may be empty."""
    if name and (not _NAME.fullmatch(name) or name.lower() in WORDS):
        raise DescriptionError(
            f"resource name {name!r:.100} is not usable: use 1 to 64 letters, digits, '_' or '-', beginning "
            f"with a letter, and none of the words {', '.join(sorted(WORDS))}"
        )


def _checked_resource(resource: ResourceDescription, neighbours: Iterable[int]) -> ResourceDescription:
    where = f"resource {resource.name or resource.guid}"
    check_name(resource.name)
    conditions = []
    for number, (action, one) in enumerate(sorted(resource.conditions, key=itemgetter(0)), 1):
        with placed(f"{where}: {VERB_OF[action]} condition {one.number}"):
            conditions.append((action, replace(checked_condition(one), number=number)))
    sets = []
    for number, each in enumerate(resource.sets, 1):
        with placed(f"{where}: set {each.attribute}"):
            condition = each.condition and replace(checked_condition(each.condition), number=number)
            sets.append(replace(each, value=plain(each.value), condition=condition))
    attributes = {}
    for name, value in resource.attributes.items():
        with placed(f"{where}: {name}"):
            attributes[name] = plain(value)
    return replace(
        resource,
        attributes=attributes,
        connections=tuple(sorted(neighbours)),
        conditions=tuple(conditions),
        sets=tuple(sets),
        traces=tuple(sorted(set(resource.traces))),
    )
