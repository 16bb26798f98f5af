"""The parts of a running federation: made, started and stopped together."""

from __future__ import annotations

import secrets

import msgspec

from fedmon.common.errors import NotConnectedError
from fedmon.common.ids import MAIN_INSTANCE, kept_client_id, new_id
from fedmon.common.settings import ResearcherSettings
from fedmon.common.settings.values import Wire
from fedmon.common.wire.connection import Link
from fedmon.common.wire.dialect import fedbiomed_dialect
from fedmon.common.wire.messages import PlanDecision
from fedmon.common.wire.runs import JobOutcome
from fedmon.researcher.asking.outcomes import Circumstances
from fedmon.researcher.asking.pending import CLOSED, Pending
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.replies.announcements import Announcements
from fedmon.researcher.replies.replies import Replies
from fedmon.researcher.roster import Roster
from fedmon.researcher.runs.book import RunBook
from fedmon.researcher.session.connection import Connection
from fedmon.researcher.session.dialect import Dialect, FedmonDialect
from fedmon.researcher.session.dispatcher import Dispatcher
from fedmon.researcher.session.inbox import Inbox
from fedmon.researcher.session.instances import claim_instance
from fedmon.researcher.session.machinery import Machinery
from fedmon.researcher.session.settling import CAP_S
from fedmon.researcher.session.tally import Tally


class FederationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a researcher's process stands; ``counters`` holds what was dropped, refused or odd, by kind."""

    broker: str
    connected: bool
    settled: bool
    researcher_id: str
    instance: str
    nodes: int
    kept_replies: int
    backlog: int
    counters: dict[str, int]
    last_error: str


class Parts:
    """Everything behind one `Federation`, from `start` to `stop`."""

    def __init__(self, settings: ResearcherSettings, *, instance: str | None, timeout_s: float) -> None:
        self.researcher_id, self.timeout_s = settings.id, timeout_s
        self.instance, queue = claim_instance(settings.folder, settings.id, wanted=instance)
        self.tally = Tally()
        # On the wire of Fed-BioMed another process of this researcher hears the same replies: it has other numbers.
        first_sequence = secrets.randbelow(2**31) if settings.wire == "fedbiomed4" else 0
        self.pending = Pending(new_id(), first_sequence=first_sequence)
        self.dialect = self._spoken(settings.wire)
        self.roster = Roster(announced=self.dialect.announced, max_nodes=settings.max_nodes)
        self.dispatcher = Dispatcher(self.tally, on_room=self._wake)
        self.replies = Replies(queue, tally=self.tally)
        self.connection = Connection(
            settings.broker,
            client_id=kept_client_id(settings.folder, f"{self.researcher_id}-{self.instance}"),
            subscriptions=self.dialect.subscriptions(),
            timeout_s=timeout_s,
            on_message=self._on_message,
            on_link=self._on_link,
            keeps_session=self.instance == MAIN_INSTANCE,
        )
        self.asker = Asker(
            self.connection,
            dialect=self.dialect,
            researcher_id=self.researcher_id,
            instance=self.instance,
            pending=self.pending,
            roster=self.roster,
            is_settled=self._is_settled,
            on_ended=self.replies.ended,
        )
        self.decisions = Announcements(PlanDecision, self.asker, self.replies, self.dispatcher)
        self.job_outcomes = Announcements(JobOutcome, self.asker, self.replies, self.dispatcher)
        self.runs = RunBook(self.asker, self.pending)
        self.machinery = Machinery(
            researcher_id=self.researcher_id,
            instance=self.instance,
            connection=self.connection,
            asker=self.asker,
            dialect=self.dialect,
            pending=self.pending,
            roster=self.roster,
            replies=self.replies,
            decisions=self.decisions,
            job_outcomes=self.job_outcomes,
            runs=self.runs,
            dispatcher=self.dispatcher,
            tally=self.tally,
            wake=self._wake,
        )
        self.inbox = Inbox(
            self.machinery,
            self.tally,
            dialect=self.dialect,
            researcher_id=self.researcher_id,
            instance=self.instance,
            strict_identity=settings.identity_is_strict,
        )

    def start(self) -> None:
        """Connect and begin; on failure nothing is left running."""
        self.replies.start()
        self.inbox.start()
        try:
            self.connection.open()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End in order: who waits, who listens, what arrives, the connection, what is to be written."""
        self.pending.stop()
        self.replies.release()
        self.machinery.close_all()
        self.inbox.stop()
        self.connection.close(self.machinery.farewell())
        self.dispatcher.stop()
        self.replies.stop()

    def wait_settled(self) -> None:
        """Wait until the roster is settled, at most 2 s; returns at once when there is no connection.

        Raises NotConnectedError when the federation is closed, and while connections keep getting lost.
        """
        if self.connection.is_connected:
            self.machinery.settled.wait(CAP_S)
        self.check_open()
        if not self.connection.is_connected and self.connection.flapping:
            raise self.connection.lost_error()

    def check_open(self) -> None:
        """Raise NotConnectedError when the federation was closed."""
        if self.pending.stopped:
            raise NotConnectedError(CLOSED)

    def _spoken(self, wire: Wire) -> Dialect:
        if wire == "fedbiomed4":
            dialect: Dialect = fedbiomed_dialect("researcher")(
                researcher_id=self.researcher_id, instance=self.instance, pending=self.pending, tally=self.tally
            )
            return dialect
        return FedmonDialect(researcher_id=self.researcher_id, instance=self.instance)

    # What the parts need of those that are made after them.

    def _on_message(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001 - the transport's order
        self.inbox.put(topic, payload, retained=retained)

    def _on_link(self, link: Link) -> None:
        self.inbox.put_link(link)

    def _is_settled(self) -> bool:
        return self.machinery.settled.is_set()

    def _wake(self) -> None:
        self.inbox.wake()

    # -----------------------------------------------------------------------------------------------------------------

    def circumstances(self) -> Circumstances:
        """Return under what conditions was asked."""
        return Circumstances(
            broker=self.connection.place,
            researcher_id=self.researcher_id,
            instance=self.instance,
            connected=self.connection.is_connected,
            settled=self.machinery.settled.is_set(),
            last_error=self.connection.last_error,
        )

    def status(self) -> FederationStatus:
        """Return how this process stands."""
        urgent, bulk = self.inbox.dropped
        dropped = {
            "messages dropped: replies and presence": urgent,
            "messages dropped: samples and logs": bulk,
            "nodes beyond max_nodes": self.roster.beyond,
        }
        return FederationStatus(
            broker=self.connection.place,
            connected=self.connection.is_connected,
            settled=self.machinery.settled.is_set(),
            researcher_id=self.researcher_id,
            instance=self.instance,
            nodes=len(self.roster),
            kept_replies=len(self.replies),
            backlog=self.inbox.backlog,
            counters=self.tally.as_dict() | {kind: number for kind, number in dropped.items() if number},
            last_error=self.connection.last_error,
        )
