"""Messages in the form of Fed-BioMed 4.4, which `Requests` speaks: ours written in it, and a caller's read from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire import messages, topics
from fedmon.common.wire.envelope import Message, Request
from fedmon.common.wire.fedbiomed4 import LOGGER, MONITORING, PROTOCOL_VERSION, REPLIES, checked_reply, reply_of
from fedmon.common.wire.messages import ErrorCode
from fedmon.common.wire.samples import AddScalar
from fedmon.researcher.replies.content import StoredDocument

PARENTS = (REPLIES, LOGGER, MONITORING)
_LOG = "log"
_METRICS = "add_scalar"
ECHOED = ("sequence", "job_id", "training_plan_url")
REPLY_COMMANDS = {"ping": "pong"}
"""Replies that have another command than their request."""

_OWN_FIELDS = ("t", "number")


class ScriptRequest(Request, frozen=True, kw_only=True, tag="script"):
    """A script's request to nodes of Fed-BioMed: ``fields`` go out as they are, and replies are kept as they came."""

    fields: dict[str, Any]


def historic(message: Message) -> dict[str, Any]:
    """Return a message of a node with the fields of version 4.4; one that 4.4 has no word for keeps its own."""
    if isinstance(message, StoredDocument):
        return message.fields
    told: dict[str, Any] = msgspec.to_builtins(reply_of(message) or message)
    if isinstance(message, AddScalar):
        told = {name: value for name, value in told.items() if name not in _OWN_FIELDS}
        told["protocol_version"] = PROTOCOL_VERSION
    return told


def echoed(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that its replies repeat."""
    return {name: message[name] for name in ECHOED if name in message}


def echoing(told: dict[str, Any], repeated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply with the values of its request in the fields that repeat it."""
    return told | {name: value for name, value in repeated.items() if name in told}


def request_of(message: Mapping[str, Any], *, fedbiomed: bool) -> tuple[type[Request], dict[str, Any]]:
    """Return our kind of request for a message of version 4.4, and its fields.

    Nodes of ``fedbiomed`` know plans by a URL, and train. Raises InvalidMessageError for a command without one.
    """
    command = message["command"]
    match command:
        case "ping":
            return messages.Ping, {}
        case "list":
            return messages.ListDatasets, {}
        case "search":
            return messages.SearchDatasets, {"tags": message["tags"]}
        case "approval" | "training-plan-status" | "train" if fedbiomed:
            return ScriptRequest, {"fields": dict(message)}
        case "approval" | "training-plan-status":
            raise InvalidMessageError(
                f"{command} by URL does not identify the plan's bytes, which are approved: pass the plan itself "
                "to training_plan_approve(), or to approve() and plan_status() of Federation",
                code=ErrorCode.UNSUPPORTED.value,
            )
        case _:
            raise InvalidMessageError(f"no node of ours serves {command!r}", code=ErrorCode.UNSUPPORTED.value)


def checked(msg: dict[str, Any], topic: str, *, researcher_id: str) -> tuple[str, dict[str, Any]]:
    """Return a message of version 4.4 for this researcher, and the historic topic that its topic equals or is below.

    Raises InvalidMessageError.
    """
    parent = "/".join(topic.split("/")[:2])
    if parent not in PARENTS:
        raise InvalidMessageError(f"topic {topic[:200]!r} is neither one of {', '.join(PARENTS)} nor below one")
    message = checked_reply(msg)
    command = message["command"]
    fits = {LOGGER: command == _LOG, MONITORING: command == _METRICS}.get(parent, command not in (_LOG, _METRICS))
    if not fits:
        raise InvalidMessageError(f"{command!r} does not belong on topic {topic[:200]!r}")
    address = topics.parse(topic)
    if address.node_id not in (None, message["node_id"]):
        raise InvalidMessageError(
            f"the topic says node {address.node_id!r} and the message says {message['node_id']!r:.80}"
        )
    if parent == REPLIES and {message["researcher_id"], address.researcher_id or researcher_id} != {researcher_id}:
        raise InvalidMessageError(f"it is for researcher {message['researcher_id']!r:.80}")
    return parent, message
