"""`Requests`: names, arguments, defaults and results for scripts of Fed-BioMed 4.4, on `Federation`.

Timeouts are caps: each call ends as soon as every node expected has answered. Failures are logged, and the
result is then as empty as it was there; `Federation` raises and explains instead.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from fedmon.common.errors import FedmonError, InvalidMessageError
from fedmon.common.files import Closing
from fedmon.common.log import escape_control
from fedmon.common.store.queue import TasksQueueError
from fedmon.common.text import plural
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.fedbiomed4 import LOGGER, MONITORING
from fedmon.common.wire.messages import DatasetsReply
from fedmon.researcher.asking.match import CLOSED
from fedmon.researcher.asking.outcome import Outcomes, OutcomeStatus
from fedmon.researcher.asking.request import checked_tags, checked_timeout
from fedmon.researcher.asking.tables import text_table
from fedmon.researcher.federation import Federation
from fedmon.researcher.historic.forms import checked, echoing, historic
from fedmon.researcher.historic.messaging import Messaging
from fedmon.researcher.historic.responses import Responses
from fedmon.researcher.replies.content import KeptReply, StoredDocument
from fedmon.researcher.replies.queue import Replies
from fedmon.researcher.samples.logs import log_as_node
from fedmon.researcher.session.callbacks import Subscription

if TYPE_CHECKING:
    from fedmon.common.plan_source import Plan

logger = logging.getLogger(__name__)

Message = dict[str, Any]
Names = list[str]
Datasets = dict[str, list[Message]]
R = TypeVar("R", bound=Reply)
D = TypeVar("D", bound=DatasetsReply)

_GONE = (OutcomeStatus.OFFLINE, OutcomeStatus.STALE)


class OnePerProcess(type):
    """Makes a class return its one object in this process, not in its forks, until it is closed, as scripts expect."""

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _living: ClassVar[dict[tuple[type, int], Any]] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the one object; make it if there is none."""
        key = cls, os.getpid()
        with cls._lock:
            if key not in cls._living:
                cls._living[key] = super().__call__(*args, **kwargs)
            return cls._living[key]

    def forget(cls, closed: object) -> None:
        """Let the next call make a new object, if this is the present one."""
        with cls._lock:
            for key in [key for key, living in cls._living.items() if living is closed]:
                del cls._living[key]


class ReplyQueue:
    """The four methods of Fed-BioMed's `TasksQueue` over kept replies, for its scripts. Safe from any thread.

    A reply that a thread got comes again, marked ``redelivered``, if the process dies before that thread called
    `task_done`, or `get` again.
    """

    def __init__(self, replies: Replies, told: Callable[[KeptReply], dict[str, Any]]) -> None:
        self._replies, self._told = replies, told

    def add(self, task: dict[str, Any]) -> None:
        """Put a message in, as it is; it is safe when this returns, on disk if this process keeps a queue there.

        Raises TasksQueueError if it is no JSON object, if the connection is closed, or if the disk has not taken it: it
        may be in memory only.
        """
        if not isinstance(task, dict):
            raise TasksQueueError(f"a queue keeps JSON objects, not a {type(task).__name__}")
        try:
            document = StoredDocument.of(msgspec.json.decode(msgspec.json.encode(task), type=dict[str, Any]))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise TasksQueueError(f"a message cannot be written as JSON: {error}") from None
        safe = threading.Event()
        self._replies.keep(document, on_kept=lambda _key, _first: safe.set())
        self._replies.settle()
        if not safe.is_set():
            not_on_disk = "the disk has not taken the message: it may be in memory only"
            raise TasksQueueError(CLOSED if self._replies.released else not_on_disk)

    def get(self, block: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - the historic signature
        """Take the oldest message, waiting for one unless ``block`` is false.

        Raises TasksQueueError if there is none, or if the connection is closed meanwhile.
        """
        taken = self._replies.take(limit=1, timeout_s=None if block else 0.0)
        if not taken:
            raise TasksQueueError(CLOSED if self._replies.released else "no reply is waiting")
        return self._told(taken[0])

    def task_done(self) -> None:
        """Note that this thread is done with the reply it got; does nothing if it got none."""
        self._replies.confirm()

    def qsize(self) -> int:
        """Return how many messages wait."""
        return len(self._replies)


class Requests(Closing, metaclass=OnePerProcess):
    """The requests of one researcher's process; every construction returns the same object.

    Connects at once, as the settings file and the environment say, or over ``mess``, a `Federation`.
    Every method is safe from any thread. A context manager; `close` lets the next construction connect again.
    """

    def __init__(self, mess: Any = None) -> None:
        if mess is not None and not isinstance(mess, Federation):
            logger.warning("mess is ignored: a %s is no Federation; try Requests(Federation(url))", type(mess).__name__)
            mess = None
        self._owned = mess is None
        self._federation: Federation = (mess or Federation()).start()
        self._lock = threading.Lock()
        self._monitor: Subscription | None = None
        self._callback: Callable[[Message], object] | None = None
        self.messaging = Messaging(self._federation)
        self.queue = ReplyQueue(self._federation.session.replies, self._told)
        self._logs = self._federation.logs(level="DEBUG")

    def close(self) -> None:
        """Stop all work of this object; the connection too, unless it was handed in. May be called twice."""
        type(self).forget(self)
        self.remove_monitor_callback()
        self._logs.remove()
        if self._owned:
            self.messaging.stop()

    def get_messaging(self) -> Messaging:
        """Return the connection."""
        return self.messaging

    # --- messages ----------------------------------------------------------------------------------------------------

    def on_message(self, msg: Message, topic: str) -> None:
        """Take a message as if it had arrived on a topic of version 4.4, or one below; errors are logged."""
        try:
            parent, message = checked(msg, topic, researcher_id=self._federation.session.researcher_id)
            if parent == LOGGER:
                self.print_node_log_message(message)
            elif parent == MONITORING:
                self._hand_to_monitor(message)
            else:
                self.queue.add(message)
        except (InvalidMessageError, TasksQueueError) as error:
            what = "ignored" if isinstance(error, InvalidMessageError) else "not stored"
            logger.error("message on topic %r %s: %s", topic, what, error)  # noqa: TRY400 - the message says it all

    def send_message(self, msg: Message, client: str | None = None, add_sequence: bool = False) -> int | None:  # noqa: FBT001, FBT002 - historic
        """Send a request to one node, or to all; its replies wait in the queue.

        With ``add_sequence`` it returns the number that the message has on the wire; these have no gaps. Returns None
        without, or when nothing was sent. Raises InvalidMessageError for anything but a request, before it is sent.
        """
        return self.messaging.send(msg, client, add_sequence=add_sequence)

    def get_messages(self, commands: Collection[str] = [], time: float = 0.0) -> Responses:
        """Take messages of these commands, or all, out of the queue; others stay.

        Waits up to ``time`` seconds, and no longer than until all requests are answered.
        """
        kept = self.messaging.outstanding.collect(
            _words(commands), timeout_s=max(0.0, time), own_only=False, while_replies=False
        )
        return Responses([self._told(one) for one in kept])

    def get_responses(
        self,
        look_for_commands: Collection[str],
        timeout: float | None = None,
        only_successful: bool = True,  # noqa: FBT001, FBT002 - the historic signature
        while_responses: bool = True,  # noqa: FBT001, FBT002
    ) -> Responses:
        """Wait for the replies to requests that this thread sent by `send_message`, and take them out of the queue.

        Ends as soon as every node expected has answered, at the latest after ``timeout`` seconds, counted from the last
        reply when ``while_responses``.
        """
        kept = self.messaging.outstanding.collect(
            _words(look_for_commands), timeout_s=self._timeout_s(timeout), own_only=True, while_replies=while_responses
        )
        told = [self._told(one) for one in kept]
        if only_successful:
            for message in told:
                if not message.get("success"):
                    why = next((message[name] for name in ("extra_msg", "msg", "status") if name in message), "")
                    command, node_id = message.get("command"), message.get("node_id")
                    logger.warning("%s of node %s left out: no success: %s", command, node_id, why)
            told = [message for message in told if message.get("success")]
        return Responses(told)

    # --- requests ----------------------------------------------------------------------------------------------------

    def ping_nodes(self) -> Names:
        """Return the ids of the nodes that answer."""
        outcomes = _asked("ping", self._federation.ping)
        return [] if outcomes is None else [str(node_id) for node_id in outcomes.ok]

    def search(self, tags: Sequence[str], nodes: Collection[str] | None = None) -> Datasets:
        """Return the datasets that carry every one of ``tags``, by node; nodes without any are left out.

        ``tags`` is a list or tuple, else InvalidInputError is raised.
        """
        tags = checked_tags(tags)
        logger.info("searching datasets with tags %r on %s", tags, _named(nodes))
        answered = _datasets("search", lambda: self._federation.search(tags, nodes=nodes or None))
        found = {node_id: datasets for node_id, datasets in answered.items() if datasets}
        for node_id, datasets in found.items():
            logger.info("node %s has %s with tags %r", node_id, plural(len(datasets), "dataset"), tags)
        if answered and not found:
            logger.info("no node has a dataset with tags %r", tags)
        return found

    def list(self, nodes: Collection[str] | None = None, verbose: bool = False) -> Datasets:  # noqa: FBT001, FBT002 - historic
        """Return the datasets that nodes offer, by node; ``verbose`` prints them as well."""
        logger.info("listing datasets of %s", _named(nodes))
        found = _datasets("list", lambda: self._federation.datasets(nodes=nodes or None))
        if verbose:
            for node_id, datasets in found.items():
                # Printing is what this argument asks for, and our log may be silent.
                print(f"\n{escape_control(node_id)}: {plural(len(datasets), 'dataset')}\n{text_table(datasets)}")  # noqa: T201
        return found

    def training_plan_approve(
        self,
        training_plan: Plan,
        description: str = "no description provided",
        nodes: Collection[str] | None = [],
        timeout: float | None = 5,
    ) -> dict[str, bool]:
        """Ask the owners of nodes to approve a training plan; says which nodes have it now, not the decisions.

        ``training_plan`` is a path, or a class or instance with ``init_dependencies``, ``add_dependency`` and
        ``save_code(path)``, which writes the bytes that are sent. A file that is not readable Python is logged and not
        sent, and the result is empty. A node that is named and did not take the plan is False.
        """
        if nodes is not None and (isinstance(nodes, str) or not isinstance(nodes, Collection)):
            logger.error("nodes is %r, not a list of node ids: the training plan was not sent", nodes)
            return {}
        try:
            timeout_s = self._timeout_s(timeout)
            outcomes = self._federation.approve(
                training_plan, description=str(description), nodes=nodes or None, timeout_s=timeout_s
            )
        except FedmonError as error:
            logger.error("the training plan was not sent: %s", error)  # noqa: TRY400 - an error of ours says what happened
            return {}
        except Exception:
            # The plan's own code made its source: that it fails is no reason to fail here.
            logger.exception("the training plan was not sent: its own code failed")
            return {}
        _explain("approval", outcomes)
        # Only of a node that answered is it known how long that took.
        told = {str(node): outcome.ok for node, outcome in outcomes.items() if outcome.elapsed_s is not None}
        return told | {node: False for node in nodes or () if node not in told}

    # --- messages of nodes --------------------------------------------------------------------------------------------

    @staticmethod
    def print_node_log_message(log: Message) -> None:
        """Log a node's log message under ``fedmon.node.<node_id>``, with its level, on one line."""
        log_as_node(log)

    def add_monitor_callback(self, callback: Callable[[Message], object]) -> None:
        """Call back with each message of metrics or scalars, in place of the callback before."""
        self._monitor_by(self._federation.on("telemetry", lambda message: callback(historic(message))), callback)

    def remove_monitor_callback(self) -> None:
        """Stop calling back."""
        self._monitor_by(None, None)

    def _monitor_by(self, subscription: Subscription | None, callback: Callable[[Message], object] | None) -> None:
        with self._lock:
            before, self._monitor, self._callback = self._monitor, subscription, callback
        if before is not None:
            before.remove()

    def _hand_to_monitor(self, message: Message) -> None:
        callback = self._callback
        if callback is not None:
            try:
                callback(message)
            except Exception:
                logger.exception("the monitor callback failed")

    # -----------------------------------------------------------------------------------------------------------------

    def _told(self, kept: KeptReply) -> Message:
        """Return a kept reply in the form of version 4.4, with the fields that it repeats from its request."""
        told = echoing(historic(kept.message), self.messaging.outstanding.repeated_by(kept.message.id))
        return {**told, "redelivered": True} if kept.redelivered else told

    def _timeout_s(self, timeout: float | None) -> float:
        return checked_timeout(timeout) if timeout else self._federation.session.asker.timeout_s


def _words(commands: Collection[str] | None) -> Collection[str]:
    return [commands] if isinstance(commands, str) else commands or ()


def _named(nodes: Collection[str] | None) -> str:
    return f"nodes {nodes!r}" if nodes else "all nodes"


def _asked(what: str, ask: Callable[[], Outcomes[R]]) -> Outcomes[R] | None:
    """Ask, and log why no node could be asked, or why one did not answer."""
    try:
        outcomes = ask()
    except FedmonError as error:
        logger.error("%s: %s", what, error)  # noqa: TRY400 - an error of ours says what happened
        return None
    _explain(what, outcomes)
    return outcomes


def _datasets(what: str, ask: Callable[[], Outcomes[D]]) -> dict[str, list[dict[str, Any]]]:
    """Ask, and return the datasets of each node that answered, as version 4.4 describes them."""
    outcomes = _asked(what, ask)
    return {} if outcomes is None else {str(node): historic(reply)["databases"] for node, reply in outcomes.ok.items()}


def _explain(what: str, outcomes: Outcomes[R]) -> None:
    """Log why no node, or one, did not do it."""
    if not outcomes:
        logger.warning("%s", outcomes.explanation())
    for node_id, outcome in outcomes.failed.items():
        # If all nodes were asked, those that are gone are no news.
        level = logging.DEBUG if not outcomes.named and outcome.status in _GONE else logging.WARNING
        logger.log(level, "%s: node %s: %s", what, node_id, outcome.reason)
