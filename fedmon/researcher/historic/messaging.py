"""`Messaging`: one connection, as scripts of Fed-BioMed 4.4 use it; messages are dictionaries in its words."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fedmon.common.errors import ConnectionFailedError, InvalidInputError
from fedmon.common.ids import NodeId, checked_id
from fedmon.common.settings import Host
from fedmon.common.wire.envelope import Message, Reply, Request
from fedmon.common.wire.fedbiomed4 import LOGGER, MONITORING, NODES, REPLIES, UNKNOWN_RESEARCHER
from fedmon.common.wire.historic_messages import HistoricMessage, ResearcherMessages
from fedmon.researcher.asking.match import Waiting
from fedmon.researcher.federation import Federation
from fedmon.researcher.historic.historic_forms import REPLY_COMMANDS, echoed, echoing, historic, request_of
from fedmon.researcher.historic.posts import Posts
from fedmon.researcher.session.callbacks import Subscription
from fedmon.researcher.session.session import Session

logger = logging.getLogger(__name__)

MAX_TOLD = 1_000
NOTHING: Mapping[str, Any] = MappingProxyType({})

MessageHandler = Callable[..., object]
"""Called as ``handler(msg=..., topic=...)``, one call at a time."""


class ComponentType(enum.Enum):
    """Which side a `Messaging` is on."""

    RESEARCHER = 1
    NODE = 2


class Messaging:
    """A researcher's connection to its nodes. Every method is safe from any thread.

    It heals itself: a lost connection is not failed but comes back. With a handler, replies to `send_message`, logs
    and metrics go to it; without one, replies wait in the queue of `Requests`. With a ``federation`` it uses that
    one's connection, started or not.
    """

    def __init__(
        self,
        on_message: MessageHandler | None,
        messaging_type: ComponentType = ComponentType.RESEARCHER,
        messaging_id: int | str = "",
        mqtt_broker: str = "localhost",
        mqtt_broker_port: int = 1883,
        *,
        federation: Federation | None = None,
    ) -> None:
        if messaging_type is not ComponentType.RESEARCHER:
            raise InvalidInputError(
                f"messaging_type is {messaging_type!r}: this is a researcher's connection, ComponentType.RESEARCHER; "
                "a node is started by `fedmon node start`"
            )
        if federation is None:
            place = Host(host=mqtt_broker, port=int(mqtt_broker_port))
            researcher_id = checked_id(str(messaging_id), what="messaging_id") if messaging_id != "" else None
            federation = Federation(f"mqtt://{place}", researcher_id=researcher_id)
        self.federation = federation
        self.handler = on_message
        self._lock = threading.Lock()
        self._posts: Posts | None = None
        self._told: list[Waiting] = []
        self._deliveries: list[Subscription] = []
        self._replies = Subscription(lambda told: self._hand_over(told[0], REPLIES, told[1]), lambda _: None)
        self._handing = threading.Lock()
        self._begun: Session | None = None
        self._at_start: list[Callable[[], None]] = [self._deliver] if on_message is not None else []
        self._failed: ConnectionFailedError | None = None
        self._stopped = threading.Event()

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - the historic signature
        """Connect; with ``block`` return only after `stop`.

        Raises ConnectionFailedError within the timeout of the settings, naming host, port and cause.
        """
        try:
            self.federation.start()
        except ConnectionFailedError as error:
            self._failed = error
            raise
        self._failed = None
        self._stopped.clear()
        with self._lock:
            begun, self._begun = self._begun, self.federation.session
            first, begin = begun is not self._begun, tuple(self._at_start)
        for one in begin if first else ():
            one()
        if block:
            self._stopped.wait()

    def at_start(self, begin: Callable[[], None]) -> None:
        """Call something at each start of the connection, and now when it is started."""
        with self._lock:
            self._at_start.append(begin)
            started = self._begun is not None
        if started:
            begin()

    def not_at_start(self, begin: Callable[[], None]) -> None:
        """End what `at_start` began."""
        with self._lock:
            self._at_start = [one for one in self._at_start if one != begin]

    def stop(self) -> None:
        """Disconnect; may be called twice, and be followed by `start`."""
        for delivery in self._deliveries:
            delivery.remove()
        self.federation.close()
        with self._lock:
            self._begun, self._posts, self._told = None, None, []
        self._stopped.set()

    def is_connected(self) -> bool:
        """Tell whether messages can be sent at this moment."""
        session = self._session()
        return session is not None and session.connection.is_connected

    def is_failed(self) -> bool:
        """Tell whether the start failed; a lost connection comes back by itself."""
        return self._failed is not None and self._session() is None

    def default_send_topic(self) -> str:
        """Return the topic of what goes to every node, in the words of version 4.4."""
        return NODES

    # --- sending -----------------------------------------------------------------------------------------------------

    def send_message(self, msg: dict[str, Any], client: str | None = None) -> None:
        """Send a request to one node, or to all when no ``client`` is named.

        Without a connection it is logged and nothing is sent. Raises InvalidMessageError for what is no request of a
        researcher, or one that no node here serves.
        """
        self.send(msg, client, add_sequence=False)

    def send(self, msg: dict[str, Any], client: str | None, *, add_sequence: bool) -> int | None:
        """Send a request as `send_message` does, with the next number as its sequence if wished; return that number."""
        message = ResearcherMessages.format_outgoing_message({**msg, "sequence": 0} if add_sequence else msg)
        nodes = None if client is None else [NodeId(checked_id(str(client), what="client"))]
        session = self._session()
        if session is None or not session.connection.is_connected:
            logger.error("%s was not sent: %s", message.kind, self._lost())
            return None
        kind, fields = request_of(message, nodes, fedbiomed=not session.dialect.plans_inline)
        sequence = session.pending.next_script_sequence() if add_sequence else None
        request = session.asker.request(kind, sequence=sequence, **fields)
        repeated = echoed(message) if sequence is None else echoed(message) | {"sequence": sequence}
        if self.handler is None:
            self._post(request, message, nodes, repeated)
        else:
            self._tell(request, nodes, repeated)
        return sequence

    def send_error(self, errnum: str, extra_msg: str = "", researcher_id: str = UNKNOWN_RESEARCHER) -> None:
        """Log that only nodes send errors; nothing is sent."""
        logger.warning(
            "a researcher sends no errors; not sent to %s: %s %s",
            researcher_id,
            getattr(errnum, "value", errnum),
            extra_msg,
        )

    @property
    def posts(self) -> Posts:
        """What was sent without waiting. Raises InvalidInputError while not started."""
        with self._lock:
            if self._posts is None:
                self._posts = Posts(self.federation.session)
            return self._posts

    def _post(
        self, request: Request, message: HistoricMessage, nodes: list[NodeId] | None, repeated: Mapping[str, Any]
    ) -> None:
        command = message.get_param("command")
        command = REPLY_COMMANDS.get(command, command)
        if not self.posts.send(request, nodes, command=command, repeated=repeated):
            logger.error("%s was not sent: %s", message.kind, self._lost())

    def _deliver(self) -> None:
        self._deliveries = [
            self.federation.on("telemetry", lambda message: self._hand_over(message, MONITORING)),
            self.federation.logs(lambda record: self._hand_over(record, LOGGER), level="DEBUG"),
        ]

    def _tell(self, request: Request, nodes: list[NodeId] | None, repeated: Mapping[str, Any]) -> None:
        session = self.federation.session

        def answered(reply: Reply) -> None:
            session.dispatcher.call(self._replies, ((reply, repeated),), urgent=True)

        waiting = session.asker.tell(request, nodes, on_answer=answered)
        with self._lock:
            self._told.append(waiting)
            forgotten, self._told = self._told[:-MAX_TOLD], self._told[-MAX_TOLD:]
        for one in forgotten:
            session.pending.close(one, taken=True)

    def _hand_over(self, message: Message, topic: str, repeated: Mapping[str, Any] = NOTHING) -> None:
        if self.handler is not None:
            # A handler of version 4.4 knows of one thread.
            with self._handing:
                self.handler(msg=echoing(historic(message), repeated), topic=topic)

    def _session(self) -> Session | None:
        try:
            return self.federation.session
        except InvalidInputError:
            return None

    def _lost(self) -> str:
        session = self._session()
        if session is None:
            return str(self._failed or "the connection is not started: call start()")
        return str(session.connection.lost_error())
