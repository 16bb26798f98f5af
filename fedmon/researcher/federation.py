"""`Federation`: who is there, what they offer, whether they accept a plan and run it, and what they measure."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import NodeId, checked_id
from fedmon.common.settings import ResearcherSettings
from fedmon.common.wire.messages import (
    Approval,
    ApprovalReply,
    ListDatasets,
    ListReply,
    LogRecord,
    Ping,
    Pong,
    SearchDatasets,
    SearchReply,
    TrainingPlanStatusReply,
)
from fedmon.researcher.asking import rows
from fedmon.researcher.asking.calls import ask, ask_pages
from fedmon.researcher.asking.forgetting import Forgotten, forget
from fedmon.researcher.asking.nodelist import Nodelist, node_ids
from fedmon.researcher.asking.outcomes import Outcomes
from fedmon.researcher.asking.request import checked_timeout
from fedmon.researcher.asking.submitting import question, submission
from fedmon.researcher.nodes import Nodes
from fedmon.researcher.roster import Instant
from fedmon.researcher.runs.face import Runs
from fedmon.researcher.samples.leases import wished
from fedmon.researcher.samples.logs import LogStream
from fedmon.researcher.samples.monitor import LiveSample, Watch
from fedmon.researcher.session.dispatcher import Subscription
from fedmon.researcher.session.machinery import EVENTS
from fedmon.researcher.session.opening import BrokerArguments, opened_with
from fedmon.researcher.session.parts import FederationStatus, Parts

if TYPE_CHECKING:
    from fedmon.common.plan_source import Plan
    from fedmon.researcher.samples.record import Record


class Federation(Runs):
    """A researcher's view of one federation; a context manager. Every method is safe from any thread.

    With nothing but a URL it connects as a researcher whose id is made once and kept. A request asks every node, or
    those that ``nodes`` names, and returns as soon as everybody expected has answered; no later than ``timeout_s``.
    What comes back says for each node what it answered, or why it did not.

    Only one process of a researcher is the instance ``main``, whose late replies and decisions outlive it; others get
    a random name.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        researcher_id: str | None = None,
        settings: ResearcherSettings | str | Path | None = None,
        username: str | None = None,
        password_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
        timeout_s: float | None = None,
        folder: str | Path | None = None,
        instance: str | None = None,
    ) -> None:
        arguments = BrokerArguments(
            url=url,
            username=username,
            password_file=password_file,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self.settings = opened_with(settings, broker=arguments, researcher_id=researcher_id, folder=folder)
        self._timeout_s = checked_timeout(self.settings.timeout_s if timeout_s is None else timeout_s)
        self._wanted_instance = instance if instance is None else checked_id(instance, what="instance")
        self._parts: Parts | None = None
        self._pid = 0

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect; raises ConnectionFailedError within the timeout, naming host, port and cause."""
        if self._parts is None:
            self._pid = os.getpid()
            parts = Parts(self.settings, instance=self._wanted_instance, timeout_s=self._timeout_s)
            parts.start()
            self._parts = parts
            # A notebook's kernel ends without `close`; leases are given back and the queue is written all the same.
            atexit.register(self.close)
        return self

    def close(self) -> None:
        """End watches and listeners, give leases back, and disconnect; may be called twice.

        Calls that wait end with NotConnectedError.
        """
        parts, self._parts = self._parts, None
        atexit.unregister(self.close)
        # After a fork the connection is the parent's.
        if parts is not None and self._pid == os.getpid():
            parts.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def researcher_id(self) -> str:
        """The id under which nodes know us."""
        return self.settings.id

    @property
    def instance(self) -> str:
        """Which of this researcher's processes we are: ``main``, or a random name."""
        return self.parts.instance

    @property
    def parts(self) -> Parts:
        """The machinery behind this face.

        Raises InvalidInputError before `start`, after `close`, and in a process that was forked since.
        """
        if self._parts is None:
            raise InvalidInputError(
                "this Federation is not started: use `with Federation(...) as fed:` or call start()"
            )
        if self._pid != os.getpid():
            raise InvalidInputError(
                f"this Federation belongs to process {self._pid}, and this is a fork of it: open another one here"
            )
        return self._parts

    def status(self) -> FederationStatus:
        """Return the state of the connection, of the queue of replies, and what was counted."""
        return self.parts.status()

    # --- who is there ------------------------------------------------------------------------------------------------

    def nodes(self) -> Nodes:
        """Return every node known, with its state; waits until the roster is settled, at most 2 s after connecting."""
        parts = self.parts
        parts.wait_settled()
        nodes = parts.roster.nodes(Instant.now())
        return Nodes(nodes, circumstances=parts.circumstances(), beyond=parts.roster.beyond)

    def forget(self, node_id: str, *, timeout_s: float = 1.0) -> Forgotten:
        """Clear what the broker retains of a node that is gone for good, or hide it here where we may not.

        A node that is only said to be online is pinged first. Raises NotFoundError for an id never heard of and
        ConflictError for a node that is alive.
        """
        return forget(self.parts, NodeId(node_id), timeout_s=checked_timeout(timeout_s))

    # --- requests ----------------------------------------------------------------------------------------------------

    def ping(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> Outcomes[Pong]:
        """Ask nodes for a sign of life."""
        parts = self.parts
        return ask(parts, parts.asker.request(Ping), Pong, rows.pong, nodes=node_ids(nodes), timeout_s=timeout_s)

    def datasets(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> Outcomes[ListReply]:
        """Ask nodes which datasets they offer to us."""
        parts = self.parts
        return ask_pages(parts, ListDatasets, ListReply, nodes=node_ids(nodes), timeout_s=timeout_s)

    def search(
        self, tags: Sequence[str], *, nodes: Nodelist = None, timeout_s: float | None = None
    ) -> Outcomes[SearchReply]:
        """Ask nodes for the datasets that carry every one of these tags; raises InvalidInputError for a bare text."""
        if isinstance(tags, str) or not isinstance(tags, list | tuple):
            raise InvalidInputError(f"tags is {tags!r}: give a list or tuple of tags, such as [{str(tags)!r}]")
        if not all(isinstance(tag, str) and 0 < len(tag) <= 256 for tag in tags) or not 0 < len(tags) <= 64:
            raise InvalidInputError("tags: give 1 to 64 texts of 1 to 256 characters each")
        parts = self.parts
        return ask_pages(
            parts, SearchDatasets, SearchReply, nodes=node_ids(nodes), timeout_s=timeout_s, tags=list(tags)
        )

    def approve(
        self, plan: Plan, *, description: str = "", nodes: Nodelist = None, timeout_s: float | None = None
    ) -> Outcomes[ApprovalReply]:
        """Ask the owners of nodes to approve a training plan; their decisions come later, see `on` and `plan_status`.

        ``plan`` is a path, or a class or instance that writes its source by ``save_code``, as `TrainingPlan` does. What
        is not readable Python is refused before anything is sent. A plan larger than a message goes through the
        repository of the settings.
        """
        parts = self.parts
        fields = submission(
            plan,
            description=description,
            repository=self.settings.repository,
            inline=parts.dialect.plans_inline,
        )
        request = parts.asker.request(Approval, **fields)
        return ask(parts, request, ApprovalReply, rows.approval, nodes=node_ids(nodes), timeout_s=timeout_s)

    def plan_status(
        self, plan: Plan, *, nodes: Nodelist = None, timeout_s: float | None = None
    ) -> Outcomes[TrainingPlanStatusReply]:
        """Ask nodes where a training plan stands with their owners."""
        parts = self.parts
        kind, fields = question(plan, repository=self.settings.repository, inline=parts.dialect.plans_inline)
        request = parts.asker.request(kind, **fields)
        return ask(
            parts, request, TrainingPlanStatusReply, rows.plan_status, nodes=node_ids(nodes), timeout_s=timeout_s
        )

    # --- what comes by itself -----------------------------------------------------------------------------------------

    def monitor(
        self,
        callback: Callable[[LiveSample], object] | None = None,
        *,
        nodes: Nodelist = None,
        interval_s: float | None = None,
        metrics: Sequence[str] | None = None,
        ordered: bool = False,
    ) -> Watch:
        """Watch live metrics: by callback, or by iterating over what is returned, until it is closed.

        ``interval_s`` is the pace that we wish for (null: each owner's), ``metrics`` names of metrics with ``*`` and
        ``?``. It begins with the first sample heard. What is missed from then on is asked for again, and comes marked
        ``late``; with ``ordered`` newer samples of its stream wait for it, until it is there or known to be lost.
        """
        parts = self.parts
        watch = Watch(
            callback,
            wish=wished(node_ids(nodes), interval_s, live=True),
            metrics=metrics,
            ordered=ordered,
            dispatcher=parts.dispatcher,
            on_closed=parts.machinery.remove_consumer,
            inquire=parts.machinery.consumers.inquire,
            wake=parts.inbox.wake,
        )
        parts.machinery.add_consumer(watch)
        return watch

    def record(
        self,
        path: str | Path,
        *,
        nodes: Nodelist = None,
        metrics: Sequence[str] | None = None,
        interval_s: float | None = None,
        history_s: float = 3600.0,
    ) -> Record:
        """Keep every sample in a store at ``path`` until what is returned is stopped; see `Record`.

        Of nodes that are not in the store yet it begins ``history_s`` seconds back. Raises StorageError when the store
        cannot be opened.
        """
        from fedmon.researcher.samples.record import begin_record

        wish = wished(node_ids(nodes), interval_s, live=False)
        return begin_record(self.parts, Path(path), wish=wish, metrics=metrics, history_s=history_s)

    def logs(
        self,
        callback: Callable[[LogRecord], object] | None = None,
        *,
        nodes: Nodelist = None,
        level: str = "WARNING",
    ) -> LogStream:
        """Take log records of nodes into Python logging, as ``fedmon.node.<node_id>``, until removed."""
        machinery, named = self.parts.machinery, node_ids(nodes)
        stream = LogStream(
            callback, machinery.remove_logs, nodes=None if named is None else frozenset(named), level=level
        )
        machinery.add_logs(stream)
        return stream

    def on(self, event: str, callback: Callable[[Any], object]) -> Subscription:
        """Call back at each ``presence`` (a `Node`), ``decision`` (a `PlanDecision`) or ``outcome`` (a `JobOutcome`).

        It ends when it is removed. A presence is told when it changes; `nodes` says what is known already. Decisions
        and outcomes that no handle follows are kept until somebody listens, also beyond the end of a process.
        ``telemetry`` brings batches of samples and scalars. Calls of one subscription follow each other.
        """
        parts = self.parts
        if event == "decision":
            return parts.decisions.listen(callback)
        if event == "outcome":
            return parts.job_outcomes.listen(callback)
        if event not in EVENTS:
            raise InvalidInputError(f"event {event!r} is not one of decision, outcome, {', '.join(EVENTS)}")
        return parts.machinery.on(event, callback)
