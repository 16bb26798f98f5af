"""A wire as a node speaks it: its topics, and its messages as bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypedDict

import msgspec

from fedmon.common.errors import FedmonError, InvalidMessageError
from fedmon.common.ids import ALL_INSTANCES, ID_PATTERN, MAIN_INSTANCE
from fedmon.common.wire import codec, topics
from fedmon.common.wire.envelope import Message, Reply, Request
from fedmon.common.wire.messages import Error, ErrorCode, LogRecord, Result
from fedmon.common.wire.runs import RunScalars
from fedmon.common.wire.topics import Address, Channel

logger = logging.getLogger(__name__)

PAGE_BYTES = codec.MAX_PAYLOAD_BYTES - 8_000
"""The room for the datasets of one reply; the rest of a message is for the envelope."""
_MAX_WARNED = 1_000


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way to a researcher."""

    topic: str
    payload: bytes
    qos: int = 1


class Echo(TypedDict):
    """The fields that every reply takes over from its request."""

    node_id: str
    researcher_id: str
    id: str
    session: str
    sequence: int


class RefusedMessageError(InvalidMessageError):
    """A message that is not served; its sender gets the error reply. ``researcher_id`` is empty if none is known."""

    def __init__(self, error: InvalidMessageError, researcher_id: str = "", envelope: Mapping[str, Any] = {}) -> None:
        super().__init__(error.reason, code=error.code)
        self.researcher_id, self._envelope = researcher_id, envelope
        instance = str(envelope.get("instance", MAIN_INSTANCE))
        self.instance = instance if ID_PATTERN.fullmatch(instance) else MAIN_INSTANCE

    def reply(self, node_id: str) -> Error:
        """Return the error reply, with the readable part of the message's envelope."""
        sequence = self._envelope.get("sequence", 0)
        return Error(
            node_id=node_id,
            researcher_id=self.researcher_id,
            id=str(self._envelope.get("id", ""))[:256],
            session=str(self._envelope.get("session", ""))[:256],
            sequence=sequence if isinstance(sequence, int) and 0 <= sequence < 2**63 else 0,
            code=ErrorCode(self.code),
            reason=self.reason,
        )


class DeclinedError(FedmonError):
    """A request is declined; the message says why, and names a remedy."""

    exit_code = 4

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class NodeDialect:
    """The wire of a node: "fedmon/1" here, others in subclasses.

    ``commands`` names its requests, ``page_bytes`` is the room for the datasets of one reply, and ``marks`` are added
    to the capabilities of the node's presence. With ``strict_identity`` a command on a node's own topic must name the
    node; without, an older researcher's need not, and that is logged once for each researcher.
    """

    commands: AbstractSet[str] = codec.REQUEST_COMMANDS
    page_bytes = PAGE_BYTES
    marks: tuple[str, ...] = ()

    def __init__(self, *, strict_identity: bool = False) -> None:
        self._strict = strict_identity
        self._warned: set[str] = set()

    def subscriptions(self, node_id: str) -> list[tuple[str, int]]:
        """Return the filters and QoS under which the node hears requests."""
        return [(topics.BROADCAST_FILTER, 0), (topics.command_filter(node_id), 1)]

    def sender(self, topic: str) -> str | None:
        """Return the researcher that may write on this topic, or None if the topic names none."""
        return topics.parse(topic).researcher_id

    def request(self, topic: str, payload: bytes) -> Request:
        """Read a request. Raises RefusedMessageError."""
        address = topics.parse(topic)
        if address.channel not in (Channel.BROADCAST, Channel.COMMAND) or address.researcher_id is None:
            raise RefusedMessageError(InvalidMessageError(f"nothing is expected on topic {topic[:200]!r}"))
        try:
            request = codec.decode_request(payload)
            if request.researcher_id != address.researcher_id:
                raise InvalidMessageError(
                    f"the topic says researcher {address.researcher_id!r} and the message says "
                    f"{request.researcher_id[:64]!r}; send under your own id",
                    code=ErrorCode.WRONG_ADDRESS.value,
                )
            self._check_node(request, address)
        except InvalidMessageError as error:
            raise RefusedMessageError(error, address.researcher_id, codec.recover_envelope(payload)) from None
        return request

    def _check_node(self, request: Request, address: Address) -> None:
        """Raise InvalidMessageError for a command that was sent to another node, or may have been."""
        if request.node_id is not None and request.node_id != address.node_id:
            where = "to every node" if address.node_id is None else f"to node {address.node_id!r}"
            raise InvalidMessageError(
                f"the message is for node {request.node_id!r} and was sent {where}; send it on that node's topic",
                code=ErrorCode.WRONG_ADDRESS.value,
            )
        if request.node_id is not None or address.node_id is None:
            return
        if self._strict:
            raise InvalidMessageError(
                "the message does not name its node (node_id), so it may have been sent to another one; upgrade "
                "fedmon at the researcher, or its owner sets strict_identity = false at the node",
                code=ErrorCode.WRONG_ADDRESS.value,
            )
        if request.researcher_id not in self._warned and len(self._warned) < _MAX_WARNED:
            self._warned.add(request.researcher_id)
            logger.warning(
                "researcher %s sends commands that do not name their node, so a copy could be replayed at another "
                "node; upgrade fedmon at the researcher", request.researcher_id,
            )  # fmt: skip

    def answer(self, reply: Reply | Result | RunScalars, to: Request | RefusedMessageError | None) -> Outgoing | None:
        """Write an answer to the instance that asked, or a result to all with None; None if this wire stays silent.

        Raises InvalidMessageError.
        """
        topic = topics.reply(reply.researcher_id, ALL_INSTANCES if to is None else to.instance, reply.node_id)
        return Outgoing(topic=topic, payload=codec.encode(reply), qos=1)

    def log(self, record: LogRecord) -> Outgoing:
        """Write a record of the node's log. Raises InvalidMessageError."""
        return Outgoing(topic=topics.log(record.node_id), payload=codec.encode(record), qos=0)


def command_of(message: Message) -> str:
    """Return the word that names the kind of a message on the wire."""
    return str(type(message).__struct_config__.tag)


def echo(request: Request, node_id: str) -> Echo:
    """Return the envelope of the reply to a request."""
    return Echo(
        node_id=node_id,
        researcher_id=request.researcher_id,
        id=request.id,
        session=request.session,
        sequence=request.sequence,
    )


def error(request: Request, node_id: str, code: ErrorCode, reason: str, *, retry_after_s: float | None = None) -> Error:
    """Return the error reply to a request."""
    return Error(code=code, reason=reason, retry_after_s=retry_after_s, **echo(request, node_id))
