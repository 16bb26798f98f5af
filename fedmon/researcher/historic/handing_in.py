"""Messages that a caller hands in: from which topic, in which words, and whether they are for this researcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire import topics
from fedmon.common.wire.envelope import PROTOCOL
from fedmon.common.wire.fedbiomed4 import LOGGER, MONITORING, REPLIES
from fedmon.common.wire.historic_messages import HistoricMessage, ResearcherMessages

PARENTS = (REPLIES, LOGGER, MONITORING)
_OURS = PROTOCOL.partition("/")[0] + "/"
_LOG = "log"
_METRICS = "add_scalar"


def parent_of(topic: str) -> str:
    """Return the historic topic that a topic is, or lies below. Raises InvalidMessageError for any other."""
    parent = "/".join(topic.split("/")[:2])
    if parent not in PARENTS:
        raise InvalidMessageError(f"topic {topic[:200]!r} is neither one of {', '.join(PARENTS)} nor below one")
    return parent


def is_ours(msg: Mapping[str, Any]) -> bool:
    """Tell whether a message is in the words of our own wire."""
    return str(dict(msg).get("protocol_version", "")).startswith(_OURS)


def checked(msg: dict[str, Any], topic: str, *, researcher_id: str) -> HistoricMessage:
    """Return a message of version 4.4 that fits its topic and is for this researcher. Raises InvalidMessageError."""
    message = ResearcherMessages.format_incoming_message(msg)
    parent, command = parent_of(topic), message.get_param("command")
    fits = {LOGGER: command == _LOG, MONITORING: command == _METRICS}.get(parent, command not in (_LOG, _METRICS))
    if not fits:
        raise InvalidMessageError(f"{message.kind} does not belong on topic {topic[:200]!r}")
    address = topics.parse(topic)
    if address.node_id not in (None, message.get_param("node_id")):
        raise InvalidMessageError(
            f"the topic says node {address.node_id!r} and the message says {message.node_id!r:.80}"
        )
    if parent == REPLIES and {message.researcher_id, address.researcher_id or researcher_id} != {researcher_id}:
        raise InvalidMessageError(f"it is for researcher {message.researcher_id!r:.80}")
    return message


def own_payload(msg: dict[str, Any], topic: str, *, researcher_id: str, instance: str) -> tuple[str, bytes]:
    """Return topic and bytes of a message in our own words, as they would have arrived. Raises InvalidMessageError."""
    if parent_of(topic) == topic == REPLIES:
        topic = topics.reply(researcher_id, instance, str(msg.get("node_id", "")))
    try:
        return topic, msgspec.json.encode(msg)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessageError(f"it cannot be written as JSON: {error}") from None
