"""`Messaging`: the connection of `Requests`, as scripts of Fed-BioMed 4.4 use it; its messages are its dictionaries."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError, NotConnectedError
from fedmon.common.ids import NodeId, checked_id
from fedmon.common.log import escape_control
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.fedbiomed4 import UNKNOWN_RESEARCHER, checked_request
from fedmon.common.wire.messages import Error
from fedmon.researcher.asking.match import CLOSED, REMEMBERED_REQUESTS, RESTART_S
from fedmon.researcher.asking.request import RequestRound
from fedmon.researcher.federation import Federation
from fedmon.researcher.historic.forms import REPLY_COMMANDS, echoed, request_of
from fedmon.researcher.replies.content import KeptReply
from fedmon.researcher.session.session import Session

logger = logging.getLogger(__name__)

ERROR = "error"
NOTHING: Mapping[str, Any] = MappingProxyType({})
STOPPED = "the connection was stopped: close this Requests, and make a new Requests()"


class Messaging:
    """The connection of a `Requests` to its nodes. Every method is safe from any thread.

    It heals itself: a lost connection comes back. Replies wait in the queue of `Requests`.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._begun = federation.session
        self.outstanding = OutstandingRequests(self._begun)
        self._stopped = threading.Event()

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - the historic signature
        """Do nothing, as `Requests` has connected; with ``block`` return only after `stop`.

        Raises InvalidInputError after `stop`.
        """
        if self._session() is None:
            raise InvalidInputError(STOPPED)
        if block:
            self._stopped.wait()

    def stop(self) -> None:
        """Disconnect; may be called twice."""
        self.federation.close()
        self._stopped.set()

    def is_connected(self) -> bool:
        """Tell whether messages can be sent at this moment."""
        session = self._session()
        return session is not None and session.connection.is_connected

    def is_failed(self) -> bool:
        """Return False: a `Requests` whose start failed is not made, and a lost connection comes back by itself."""
        return False

    # --- sending -----------------------------------------------------------------------------------------------------

    def send_message(self, msg: dict[str, Any], client: str | None = None) -> None:
        """Send a request to one node, or to all when no ``client`` is named.

        Without a connection it is logged and nothing is sent. Raises InvalidMessageError for anything but a request of
        a researcher that nodes here serve.
        """
        self.send(msg, client, add_sequence=False)

    def send(self, msg: dict[str, Any], client: str | None, *, add_sequence: bool) -> int | None:
        """Send a request as `send_message` does, with the next number as its sequence if wished; return that number."""
        message = checked_request({**msg, "sequence": 0} if add_sequence else msg)
        nodes = None if client is None else [NodeId(checked_id(str(client), what="client"))]
        session = self._session()
        if session is None or not session.connection.is_connected:
            logger.error("%s was not sent: %s", message["command"], self._lost())
            return None
        kind, fields = request_of(message, fedbiomed=not session.dialect.plans_inline)
        sequence = session.pending.next_sequence(of_script=True) if add_sequence else None
        request = session.asker.request(kind, sequence=sequence, **fields)
        repeated = echoed(message) if sequence is None else echoed(message) | {"sequence": sequence}
        command = message["command"]
        command = REPLY_COMMANDS.get(command, command)
        if self.outstanding.send(request, nodes, command=command, repeated=repeated):
            return sequence
        logger.error("%s was not sent: %s", message["command"], self._lost())
        return None

    def send_error(self, errnum: str, extra_msg: str = "", researcher_id: str = UNKNOWN_RESEARCHER) -> None:
        """Log that only nodes send errors; nothing is sent."""
        number = getattr(errnum, "value", errnum)
        logger.warning("a researcher sends no errors; not sent to %s: %s %s", researcher_id, number, extra_msg)

    def _session(self) -> Session | None:
        """Return the session, or None once it was stopped, also if the federation was started again."""
        with contextlib.suppress(InvalidInputError):
            return self._begun if self.federation.session is self._begun else None
        return None

    def _lost(self) -> str:
        session = self._session()
        return STOPPED if session is None else str(session.connection.lost_error())


class OutstandingRequest(msgspec.Struct, kw_only=True, eq=False):
    """One request that was sent, and the thread that sent it.

    Its replies have the ``command``, and repeat the ``repeated`` fields. It is ``awaited`` while its own thread
    collects its replies, and has ``ended`` when they are not waited for again.
    """

    waiting: RequestRound
    command: str
    repeated: Mapping[str, Any]
    owner: threading.Thread
    awaited: bool = False
    ended: bool = False


class OutstandingRequests:
    """Sends requests, and collects their replies from the queue. Safe from any thread.

    Threads that send and collect never take each other's replies. A thread that sent nothing takes the replies in the
    queue, except replies that another thread waits for at that moment.
    """

    def __init__(self, session: Session) -> None:
        self._asker, self._replies = session.asker, session.replies
        self._lock = threading.Lock()
        self._sent: OrderedDict[str, OutstandingRequest] = OrderedDict()

    def send(
        self, request: Request, nodes: Sequence[NodeId] | None, *, command: str, repeated: Mapping[str, Any]
    ) -> bool:
        """Send a request; its replies have this ``command`` and repeat these fields. False when not sent.

        Raises InvalidMessageError for a request that does not fit into a message.
        """
        self._asker.dialect.encode(request)  # before anything is kept of it
        # A node of Fed-BioMed that is asked twice trains twice.
        waiting = RequestRound(self._asker, request, nodes, on_answer=self._answered, repeats=command != "train")
        sent = OutstandingRequest(waiting=waiting, command=command, repeated=repeated, owner=threading.current_thread())
        with self._lock:
            self._sent[request.id] = sent
            forgotten = list(self._sent.values())[:-REMEMBERED_REQUESTS]
            for one in forgotten:
                del self._sent[one.waiting.id]
        self._asker.pending.open(waiting)
        for one in forgotten:
            self._asker.pending.close(one.waiting)
        sent.ended = not waiting.send()
        return not sent.ended

    def _answered(self, reply: Reply) -> None:
        self._replies.keep(reply)
        if isinstance(reply, Error):
            logger.warning("node %s: %s: %s", reply.node_id, reply.code.value, escape_control(reply.reason))

    def repeated_by(self, request_id: str) -> Mapping[str, Any]:
        """Return the fields that replies to a request repeat from it; empty when it is unknown."""
        sent = self._sent.get(request_id)
        return NOTHING if sent is None else sent.repeated

    def collect(
        self, commands: Collection[str], *, timeout_s: float, own_only: bool, while_replies: bool
    ) -> list[KeptReply]:
        """Take replies of these commands, or of all when there are none named, out of the queue for good.

        Ends as soon as every node expected has answered all requests; if there are none, as soon as there is a reply.
        Waits no longer than ``timeout_s``, which begins anew with each reply when ``while_replies``. A caller that is
        interrupted, or killed, takes none. Raises NotConnectedError when the federation is closed before anything came.
        """
        with self._awaited(commands) as awaited:
            own = {one.waiting.id for one in awaited if one.owner is threading.current_thread()}
            wanted, found = self._wanted(commands, own, own_only=own_only), list[KeptReply]()
            deadline = Deadline(timeout_s)
            try:
                is_last = False
                while not is_last:
                    pauses = [pause for one in awaited if (pause := self._step(one)) is not None]
                    is_last = self._replies.released or deadline.passed() or not (pauses or not (awaited or found))
                    if is_last:
                        self._replies.settle()
                    # A node that went offline meanwhile is not waited for.
                    pause_s = 0.0 if is_last else min(deadline.left_s(), RESTART_S, *pauses)
                    taken = self._replies.take(wanted=wanted, timeout_s=pause_s, into=found)
                    if taken and while_replies:
                        deadline = Deadline(timeout_s)
                self._replies.confirm()
            except BaseException:
                self._replies.give_back(found)
                raise
            if self._replies.released and not found:
                raise NotConnectedError(CLOSED)
            for one in awaited:
                # After a whole timeout for its own replies a thread does not wait for them again.
                one.ended = one.ended or (one.waiting.id in own and timeout_s > 0)
                if one.ended:
                    self._asker.pending.close(one.waiting)
            return [kept for kept in found if not commands or kept.command in commands]

    def _step(self, sent: OutstandingRequest) -> float | None:
        """Ask silent nodes again if that is due; return in how many seconds to look again, None when it has ended."""
        pause_s = None if sent.ended else sent.waiting.step()
        sent.ended = pause_s is None
        return pause_s

    @contextlib.contextmanager
    def _awaited(self, commands: Collection[str]) -> Iterator[list[OutstandingRequest]]:
        """Choose the requests to wait for: those of this thread, which it reserves, or else those of others."""
        me = threading.current_thread()
        with self._lock:
            open_ = [one for one in self._sent.values() if not one.ended and (not commands or one.command in commands)]
            chosen = [one for one in open_ if one.owner is me] or [one for one in open_ if not one.awaited]
            for one in chosen:
                one.awaited = one.owner is me
        try:
            yield chosen
        finally:
            for one in chosen:
                if one.owner is me:
                    one.awaited = False

    def _wanted(
        self, commands: Collection[str], own: Collection[str], *, own_only: bool
    ) -> Callable[[KeptReply], bool]:
        def wanted(kept: KeptReply) -> bool:
            request_id = kept.message.id
            if own and own_only and request_id and request_id not in own:
                return False
            if self._is_anothers(request_id, collecting=bool(own)):
                return False
            # A node that refuses has answered; its error goes with the replies that it stands for.
            return not commands or kept.command in commands or (kept.command == ERROR and request_id in own)

        return wanted

    def _is_anothers(self, request_id: str, *, collecting: bool) -> bool:
        """Tell whether a reply is for another thread: one that waits, or will when we, too, collect our own."""
        sent = self._sent.get(request_id)
        if sent is None or sent.owner is threading.current_thread():
            return False
        return sent.awaited or (collecting and not sent.ended and sent.owner.is_alive())
