"""`Federation`: nodes, their datasets, approval and runs of plans, and live metrics."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import at_home
from fedmon.common.ids import NodeId, checked_id
from fedmon.common.settings.broker import BrokerSettings, broker_from_url
from fedmon.common.settings.sources import load_researcher
from fedmon.common.settings.values import ResearcherSettings
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
from fedmon.researcher.asking.outcome import Nodes, Outcomes
from fedmon.researcher.asking.request import Nodelist, checked_tags, checked_timeout, node_ids
from fedmon.researcher.asking.submission import question, submission
from fedmon.researcher.roster import Moment
from fedmon.researcher.samples.consumers import wished
from fedmon.researcher.samples.logs import LogStream
from fedmon.researcher.samples.watch import LiveSample, Watch
from fedmon.researcher.session.callbacks import Subscription
from fedmon.researcher.session.session import EVENTS, FederationStatus, Forgotten, Session

if TYPE_CHECKING:
    from fedmon.common.plan_source import Plan
    from fedmon.common.wire.runs import RunLimits
    from fedmon.researcher.runs.handle import RunHandle
    from fedmon.researcher.runs.states import RunList
    from fedmon.researcher.samples.record import Record

    Runnable = Plan | ApprovalReply


class Federation:
    """A researcher's view of one federation; a context manager. Every method is safe from any thread.

    With nothing but a URL it connects as a researcher whose id is made once and kept. Arguments override ``settings``,
    a value or a file (default: the user's file, and the environment). A ``username`` is the id, too; ``folder`` keeps
    the id and late replies. A request asks every node, or those that ``nodes`` names, and returns as soon as every node
    expected has answered; no later than ``timeout_s``. The result holds each node's answer, or the reason for its
    absence.

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
        self.settings = opened_settings(
            settings,
            url=url,
            researcher_id=researcher_id,
            folder=folder,
            username=username,
            password_file=password_file,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self._timeout_s = checked_timeout(self.settings.timeout_s if timeout_s is None else timeout_s)
        self._wanted_instance = instance if instance is None else checked_id(instance, what="instance")
        self._session: Session | None = None
        self._starting = threading.Lock()
        self._pid = 0

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect; raises ConnectionFailedError within the timeout, naming host, port and cause."""
        with self._starting:
            if self._session is None:
                self._pid = os.getpid()
                session = Session(self.settings, instance=self._wanted_instance, timeout_s=self._timeout_s)
                session.start()
                self._session = session
                # A notebook's kernel ends without `close`; leases are given back and the queue is written all the same.
                atexit.register(self.close)
        return self

    def close(self) -> None:
        """End watches and listeners, give leases back, and disconnect; may be called twice.

        Calls that wait end with NotConnectedError.
        """
        session, self._session = self._session, None
        atexit.unregister(self.close)
        # After a fork the connection is the parent's.
        if session is not None and self._pid == os.getpid():
            session.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Federation at {self.settings.broker.url} as {self.researcher_id}>"

    @property
    def researcher_id(self) -> str:
        """The id under which nodes know us."""
        return self.settings.id

    @property
    def instance(self) -> str:
        """Which of this researcher's processes we are: ``main``, or a random name."""
        return self.session.instance

    @property
    def session(self) -> Session:
        """The running session, for the package itself.

        Raises InvalidInputError before `start`, after `close`, and in a process that was forked since.
        """
        if self._session is None:
            raise InvalidInputError(
                "this Federation is not started, or is closed: use `with Federation(...) as fed:` or call start()"
            )
        if self._pid != os.getpid():
            raise InvalidInputError(
                f"this Federation belongs to process {self._pid}, and this is a fork of it: open a new one here"
            )
        return self._session

    def status(self) -> FederationStatus:
        """Return the state of the connection and of the queue of replies, and all counters."""
        return self.session.status()

    # --- nodes -------------------------------------------------------------------------------------------------------

    def nodes(self) -> Nodes:
        """Return every node known, with its state; waits until the roster is settled, at most 2 s after connecting."""
        asker = self.session.asker
        asker.wait_settled()
        nodes = asker.roster.nodes(Moment.now())
        return Nodes(nodes, circumstances=asker.circumstances(), beyond=asker.roster.beyond)

    def forget(self, node_id: str, *, timeout_s: float = 1.0) -> Forgotten:
        """Clear the retained presence of a node that is gone for good.

        A node that runs announces itself again. Raises NotFoundError for an id never heard of, and ConflictError for a
        node that is alive, or that the broker does not let us clear: its operator may.
        """
        return self.session.forget(NodeId(node_id), timeout_s=checked_timeout(timeout_s))

    # --- requests ----------------------------------------------------------------------------------------------------

    def ping(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> Outcomes[Pong]:
        """Ask nodes for a sign of life."""
        return self.session.asker.ask(Ping, Pong, nodes=node_ids(nodes), timeout_s=timeout_s)

    def datasets(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> Outcomes[ListReply]:
        """Ask nodes which datasets they offer to us."""
        return self.session.asker.ask(ListDatasets, ListReply, nodes=node_ids(nodes), timeout_s=timeout_s)

    def search(
        self, tags: Sequence[str], *, nodes: Nodelist = None, timeout_s: float | None = None
    ) -> Outcomes[SearchReply]:
        """Ask nodes for the datasets that carry every one of these tags; raises InvalidInputError for a bare text."""
        return self.session.asker.ask(
            SearchDatasets, SearchReply, nodes=node_ids(nodes), timeout_s=timeout_s, tags=checked_tags(tags)
        )

    def approve(
        self,
        plan: Plan,
        *,
        description: str = "",
        datasets: Sequence[str] | None = None,
        purpose: str = "",
        nodes: Nodelist = None,
        timeout_s: float | None = None,
    ) -> Outcomes[ApprovalReply]:
        """Ask the owners of nodes to approve a training plan; their decisions come later, see `on` and `plan_status`.

        ``datasets`` are those that it is to run on, by id, name or tag (``a,b`` for both tags), None for all that a
        node lists to you; ``purpose`` tells owners why. An approval is a grant for these, within the arguments that the
        plan declares, unless its owner decides otherwise.

        ``plan`` is a path, or a class or instance that writes its source by ``save_code``, as `TrainingPlan` does. A
        file that is not readable Python is refused before anything is sent. A plan larger than a message goes through
        the repository of the settings.
        """
        asker = self.session.asker
        fields = submission(
            plan,
            description=description,
            datasets=checked_tags(datasets, what="datasets") if datasets else datasets,
            purpose=purpose,
            repository=self.settings.repository,
            inline=asker.dialect.plans_inline,
        )
        return asker.ask(Approval, ApprovalReply, nodes=node_ids(nodes), timeout_s=timeout_s, **fields)

    def plan_status(
        self, plan: Plan, *, nodes: Nodelist = None, timeout_s: float | None = None
    ) -> Outcomes[TrainingPlanStatusReply]:
        """Ask nodes where a training plan stands with their owners: its grants for you, and how many runs are left."""
        asker = self.session.asker
        kind, fields = question(plan, repository=self.settings.repository, inline=asker.dialect.plans_inline)
        return asker.ask(kind, TrainingPlanStatusReply, nodes=node_ids(nodes), timeout_s=timeout_s, **fields)

    # --- runs --------------------------------------------------------------------------------------------------------

    def run(
        self,
        plan: Runnable,
        *,
        nodes: Nodelist = None,
        tags: Sequence[str] | None = None,
        dataset: str | None = None,
        args: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        limits: RunLimits | Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        job_id: str | None = None,
        group: str = "",
        name: str = "",
    ) -> RunHandle:
        """Run an approved plan on nodes; returns as soon as every node accepted or refused, see `RunHandle`.

        ``plan`` is as in `approve`, the answer to it, or ``sha256:`` and a digest. It runs on the named nodes, or on
        all online ones; with ``tags``, a ``dataset`` by its id or name, or both, on those that offer such data, which
        the plan gets. ``args`` are JSON values, ``inputs`` JSON values and numpy arrays, which go through the
        repository of the settings when they are large; all nodes get the same. ``limits`` are those of RunLimits, and
        nodes lower them to their own. A node starts a ``job_id`` once, however often it is asked; one is made up if it
        is None. Runs of one ``group`` are the rounds of one training, which reports join to learning curves; a ``name``
        finds this run again. Raises InvalidInputError, or ConflictError for the ``job_id`` of another run
        here, before a node is asked to run, and NobodyToRunError, a NoAnswerError, when there is no node to ask.
        """
        from fedmon.researcher.runs.start import digest_of, start_run

        session = self.session
        return start_run(
            session.asker,
            session.runs,
            sha256=digest_of(plan),
            nodes=node_ids(nodes),
            tags=tags,
            dataset_id=dataset,
            arguments=args,
            inputs=inputs,
            limits=limits,
            repository=self.settings.repository,
            timeout_s=timeout_s,
            job_id=job_id,
            group=group,
            name=name,
        )

    def job(
        self,
        job_id: str,
        *,
        nodes: Nodelist = None,
        expected: Nodelist = None,
        timeout_s: float | None = None,
    ) -> RunHandle:
        """Return a run, also one that another process of this researcher started; does not wait for its end.

        ``job_id`` is its id, its name, which means the newest run called so, or at least 4 characters of its id. Nodes
        that are ``expected`` to have it count as part of it while they are silent, until they say that they do not know
        it. Raises ConflictError if several ids begin so, and RunNotKnownError, a NotFoundError, if no node knows it,
        and nothing of it is kept here.
        """
        from fedmon.researcher.runs.start import find_run

        session = self.session
        return find_run(
            session.asker,
            session.runs,
            session.job_outcomes,
            job_id,
            nodes=node_ids(nodes),
            expected=node_ids(expected) or (),
            timeout_s=timeout_s,
        )

    def jobs(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> RunList:
        """Ask nodes for all jobs of this researcher that they know; shows the runs, newest first."""
        from fedmon.researcher.runs.start import all_jobs

        return all_jobs(self.session.asker, nodes=node_ids(nodes), timeout_s=timeout_s)

    # --- messages of nodes --------------------------------------------------------------------------------------------

    def monitor(
        self,
        callback: Callable[[LiveSample], object] | None = None,
        *,
        nodes: Nodelist = None,
        interval_s: float | None = None,
        metrics: Sequence[str] | None = None,
        ordered: bool = False,
    ) -> Watch:
        """Watch live metrics: by callback, or by iterating over the watch, until it is closed.

        ``interval_s`` is the requested interval (None: each owner's), ``metrics`` names of metrics with ``*`` and
        ``?``. It begins with the first sample heard. Samples missed from then on are asked for again, and come marked
        ``late``; with ``ordered`` newer samples of its stream wait for it, until it arrived or is known to be lost.
        """
        session = self.session
        watch = Watch(
            callback,
            consumers=session.consumers,
            wish=wished(node_ids(nodes), interval_s, live=True),
            metrics=metrics,
            ordered=ordered,
            dispatcher=session.dispatcher,
        )
        session.consumers.add(watch)
        return watch

    def record(
        self,
        path: str | Path | None = None,
        *,
        nodes: Nodelist = None,
        metrics: Sequence[str] | None = None,
        interval_s: float | None = None,
        history_s: float = 3600.0,
        to: str | None = None,
    ) -> Record:
        """Keep every sample in a store at ``path`` until the record is stopped; see `Record`.

        Nodes that are new in the store begin ``history_s`` seconds back, with their newest 256 streams. ``to`` is the
        URL of a metrics store such as VictoriaMetrics, which gets every sample too; without ``path``, a file in the
        researcher's folder buffers up to 2 GiB for it. Raises StorageError when the file cannot be opened, and
        ConflictError while an earlier record of this federation has it.
        """
        from fedmon.researcher.samples.record import Record

        session = self.session
        record = Record(
            None if path is None else at_home(path),
            asker=session.asker,
            consumers=session.consumers,
            to=to,
            settings=self.settings,
            wish=wished(node_ids(nodes), interval_s, live=False),
            metrics=metrics,
            history_s=history_s,
        )
        session.consumers.add(record)
        return record

    def logs(
        self,
        callback: Callable[[LogRecord], object] | None = None,
        *,
        nodes: Nodelist = None,
        level: str = "WARNING",
    ) -> LogStream:
        """Take log records of nodes into Python logging, as ``fedmon.node.<node_id>``, until removed."""
        logs, named = self.session.logs, node_ids(nodes)
        stream = LogStream(callback, logs.remove, nodes=None if named is None else frozenset(named), level=level)
        logs.add(stream)
        return stream

    def on(self, event: str, callback: Callable[[Any], object]) -> Subscription:
        """Call back at each ``presence`` (a `Node`), ``decision`` (a `PlanDecision`) or ``outcome`` (a `JobOutcome`).

        It ends when it is removed. A presence is reported when it changes; `nodes` lists the nodes known already.
        Decisions and outcomes that no handle follows are kept until a callback takes them, also beyond the end of a
        process. ``telemetry`` brings batches of samples and scalars. Calls of one subscription follow each other.
        Raises BusyError if the thread that stores replies closes or is overloaded.
        """
        session = self.session
        if event == "decision":
            return session.decisions.listen(callback)
        if event == "outcome":
            return session.job_outcomes.listen(callback)
        if event not in EVENTS:
            raise InvalidInputError(f"event {event!r} is not one of decision, outcome, {', '.join(EVENTS)}")
        return session.on(event, callback)


def opened_settings(
    settings: ResearcherSettings | str | Path | None,
    *,
    url: str | None,
    researcher_id: str | None,
    folder: str | Path | None,
    username: str | None,
    **files: str | Path | None,
) -> ResearcherSettings:
    """Return the settings in force: arguments first, then ``settings``, or the user's file and environment.

    A broker with users binds each to its name, so that a user name given here is also the id.
    Raises SettingsError, InvalidIdError, and StorageError when an id cannot be kept.
    """
    options: dict[str, Any] = {name: at_home(path) for name, path in files.items() if path is not None}
    if username is not None:
        options["username"] = username
    if researcher_id is None and (username or (url and not isinstance(settings, ResearcherSettings))):
        researcher_id = username or broker_from_url(url or "").username
    own: dict[str, Any] = {} if researcher_id is None else {"id": checked_id(researcher_id, what="researcher_id")}
    if folder is not None:
        own["folder"] = at_home(folder)
    if isinstance(settings, ResearcherSettings):
        read = msgspec.structs.replace(settings, **own)
    else:
        environ = os.environ | {f"FEDMON_RESEARCHER_{name.upper()}": str(value) for name, value in own.items()}
        read = load_researcher(None if settings is None else at_home(settings), environ)
    opened = msgspec.structs.replace(read, broker=_broker(read.broker, url, options))
    # A password that cannot be read is reported here, to the caller, and not on the thread that connects.
    opened.broker.password()
    return opened


def _broker(broker: BrokerSettings, url: str | None, options: dict[str, Any]) -> BrokerSettings:
    """Return these arguments over settings; another URL inherits no secret of the first."""
    if url is None:
        return msgspec.structs.replace(broker, **options)
    return broker_from_url(
        url,
        keepalive_s=broker.keepalive_s,
        mqtt_version=broker.mqtt_version,
        connect_timeout_s=broker.connect_timeout_s,
        **options,
    )
