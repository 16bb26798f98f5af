"""The topics of the federation, and the senders of their messages.

The sender's id is a topic level, so that any broker's access list can hold each party to its own name.
"""

from __future__ import annotations

import enum
import functools
import re

import msgspec

from fedmon.common.ids import ALL_INSTANCES, ID_PATTERN, InstanceId, NodeId, ResearcherId

MAX_TOPIC_BYTES = 200
MONITORING_FLAT = "general/monitoring"
ALL_STATUS = "general/status/+"
ALL_MONITORING = "general/monitoring/#"
ALL_LOGS = "general/logger/#"
BROADCAST_FILTER = "general/nodes/+"

_PORTABLE_TOPIC = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+){0,5}")


class Channel(enum.Enum):
    """The kind of message on a topic."""

    BROADCAST = "broadcast command"
    COMMAND = "command to one node"
    REPLY = "reply"
    LOG = "log"
    METRICS = "metrics"
    STATUS = "presence"
    OTHER = "other"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed topic: its channel, sender and recipient."""

    channel: Channel
    researcher_id: ResearcherId | None = None
    instance: InstanceId | None = None
    node_id: NodeId | None = None


def broadcast(researcher_id: str) -> str:
    """Return the topic on which a researcher asks every node."""
    return f"general/nodes/{researcher_id}"


def command(researcher_id: str, node_id: str) -> str:
    """Return the topic on which a researcher asks one node."""
    return f"general/nodes/{researcher_id}/{node_id}"


def command_filter(node_id: str) -> str:
    """Return the filter under which a node hears commands sent to it alone."""
    return f"general/nodes/+/{node_id}"


def reply(researcher_id: str, instance: str, node_id: str) -> str:
    """Return the topic on which a node answers one instance of a researcher."""
    return f"general/researcher/{researcher_id}/{instance}/{node_id}"


def reply_filters(researcher_id: str, instance: str) -> tuple[str, str]:
    """Return the filters under which one instance hears its replies, and the decisions meant for all."""
    return reply(researcher_id, instance, "+"), reply(researcher_id, ALL_INSTANCES, "+")


def log(node_id: str) -> str:
    """Return the topic of a node's log records."""
    return f"general/logger/{node_id}"


def monitoring(node_id: str) -> str:
    """Return the topic of a node's metrics."""
    return f"general/monitoring/{node_id}"


def status(node_id: str) -> str:
    """Return the topic of a node's retained presence."""
    return f"general/status/{node_id}"


@functools.lru_cache(maxsize=8_192)
def parse(topic: str) -> Address:  # noqa: PLR0911  # a table of topics, one return each
    """Read a topic; one of another wire, or with an unusable id, becomes channel OTHER."""
    levels = topic.split("/")
    if levels[0] != "general" or not all(map(ID_PATTERN.fullmatch, levels[2:])):
        return Address(channel=Channel.OTHER)
    match levels[1:]:
        case ["nodes", researcher_id]:
            return Address(channel=Channel.BROADCAST, researcher_id=ResearcherId(researcher_id))
        case ["nodes", researcher_id, node_id]:
            return Address(channel=Channel.COMMAND, researcher_id=ResearcherId(researcher_id), node_id=NodeId(node_id))
        case ["researcher", researcher_id, instance, node_id]:
            return Address(
                channel=Channel.REPLY,
                researcher_id=ResearcherId(researcher_id),
                instance=InstanceId(instance),
                node_id=NodeId(node_id),
            )
        case ["logger", node_id]:
            return Address(channel=Channel.LOG, node_id=NodeId(node_id))
        case ["monitoring", node_id]:
            return Address(channel=Channel.METRICS, node_id=NodeId(node_id))
        case ["monitoring"]:
            return Address(channel=Channel.METRICS)
        case ["logger"]:
            return Address(channel=Channel.LOG)
        case ["status", node_id]:
            return Address(channel=Channel.STATUS, node_id=NodeId(node_id))
        case _:
            return Address(channel=Channel.OTHER)


def is_portable(topic: str) -> bool:
    """Tell whether every broker that we know carries a publish on this topic."""
    return len(topic) <= MAX_TOPIC_BYTES and _PORTABLE_TOPIC.fullmatch(topic) is not None
