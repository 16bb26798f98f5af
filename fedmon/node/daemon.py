"""The node daemon: puts the parts together, connects, and stops in order.

Threads: the router's owns the registers and serves requests, the owner's commands and timers; the transport connects;
the sampler measures; the control server listens to the owner; workers check plans, transfer files, try the sandbox and
look at jobs. The main thread starts and stops the others, and waits for signals.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.actor import Actor, Bound, BusyError, Priority
from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import FedmonError, InvalidMessageError
from fedmon.common.http import download
from fedmon.common.ids import ID_PATTERN, kept_client_id
from fedmon.common.log import OutgoingLogHandler, configure_cli_logging
from fedmon.common.settings.broker import BrokerHost
from fedmon.common.settings.sources import load_node
from fedmon.common.settings.values import NodeSettings
from fedmon.common.wire import codec, topics
from fedmon.common.wire.connection import BrokerConnection
from fedmon.common.wire.dialect import fedbiomed_dialect
from fedmon.common.wire.messages import LogRecord
from fedmon.common.wire.runs import RunScalars
from fedmon.node.folder import NodeFolder, read_boot
from fedmon.node.measure.jobs import WatchedJob
from fedmon.node.measure.leases import LeaseTable
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.owner.commands import OwnerCommands, RunningNode
from fedmon.node.owner.control import ControlServer
from fedmon.node.presence import REFRESH_S, PresenceKeeper
from fedmon.node.registers.plan_source import CodeCheck, check_source
from fedmon.node.registers.state import Registers
from fedmon.node.requests.dialect import NodeDialect, Outgoing
from fedmon.node.requests.handlers import Handlers
from fedmon.node.requests.monitor import MonitorHandler
from fedmon.node.requests.outbox import Delivery
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.quotas import Throttle
from fedmon.node.requests.router import Router
from fedmon.node.runs.service import Runs
from fedmon.node.workers import Workers

# By name, since this module is the program that runs, and would log outside of fedmon as "__main__".
logger = logging.getLogger("fedmon.node.daemon")

RUN_COMMANDS = ("run", "stop", "job-status")
CAPABILITIES = ["ping", "list", "search", "approval", "training-plan-status", "monitor", "ack", *RUN_COMMANDS]
MESSAGES_BOUND = Bound(4_000, 32 * 2**20)
"""Messages from outside that may wait for the router; beyond it they are dropped and counted."""
FIRST_HOLD_S, LONGEST_HOLD_S = 2.0, 60.0
"""How long a researcher that floods the node is not heard: longer each time, until the node was left alone as long."""
COMMAND_TIMEOUT_S = 20.0
MAX_DOWNLOADS, DOWNLOAD_TIMEOUT_S = 100, 30.0
"""Plans that may wait to be fetched, and the time for each."""
STOP_WITHIN_S = 4.5
_ENDING = {signal.SIGTERM, signal.SIGINT}
# Threads inherit the mask, so that each signal waits for `sigwait`, also one that comes during the start.
_SIGNALS = (*_ENDING, signal.SIGHUP)


class LocalNode:
    """Everything of a node but its connection; made on one thread, then owned by the router's.

    ``boot()`` returns the present boot; samples keep that of the start. ``post(job)`` runs a job on the router's
    thread; ``publish(payload)`` and ``send(outgoing)`` hand a message to the connection.
    """

    def __init__(
        self,
        folder: NodeFolder,
        settings: NodeSettings,
        *,
        boot: Callable[[], int],
        post: Callable[[Callable[[], object]], bool],
        publish: Callable[[bytes], bool],
        send: Callable[[Outgoing], bool],
    ) -> None:
        self._settings, self._boot, self._post, self._send = settings, boot, post, send
        self.policy = policy = Policy(settings.policy, settings.id)
        self.dialect = dialect = _dialect(settings)
        self.registers = registers = Registers(folder, settings)
        self.workers = Workers(post)
        self._being_read = set[str]()
        self.pipeline = Pipeline(
            settings,
            boot=boot(),
            recording_file=folder.recording_file,
            send=publish,
            leaves=policy.metric_leaves,
            on_sent=self._count_sent,
            on_job_end=self._on_job_end,
        )
        self.leases = LeaseTable(
            default_interval_s=settings.metrics.interval_s,
            min_interval_s=settings.metrics.min_interval_s,
            follow=lambda interval_s, live: self.pipeline.follow(interval_s, live=live),
        )
        self.delivery = Delivery(
            registers.outbox,
            dialect=dialect,
            policy=policy,
            audit=registers.audit,
            send=send,
            seen=lambda researcher_id: policy.seen(researcher_id, registers.datasets.all()),
        )
        self.runs = Runs(
            registers,
            policy,
            settings,
            boot=boot,
            folder=folder.path,
            measuring=self.pipeline,
            workers=self.workers,
            send=self._send_scalars,
            push=self.delivery.push,
            is_heard="run" in dialect.commands,
        )
        self.router = self._made_router()

    def _made_router(self) -> Router:
        registers, policy, dialect = self.registers, self.policy, self.dialect
        handlers = Handlers(
            registers,
            policy,
            boot=self._boot,
            runs=self.runs,
            monitor=MonitorHandler(self.leases, self.pipeline, policy, self._count_sent),
            check_plan=self.check_plan,
            page_bytes=dialect.page_bytes,
        )
        return Router(
            policy,
            dialect=dialect,
            audit=registers.audit,
            database=registers.database,
            handlers=handlers.by_kind,
            delivery=self.delivery,
            refused=registers.refused,
            quotas=registers.quotas,
            fetch=self._fetch,
        )

    @property
    def capabilities(self) -> list[str]:
        """Name the commands that this node answers."""
        spoken = [name for name in CAPABILITIES if name in self.dialect.commands]
        silent = set() if self.pipeline.enabled else {"monitor"}
        if not self._settings.runs.enabled:
            silent.update(RUN_COMMANDS)
        return [*self.dialect.marks, *(name for name in spoken if name not in silent)]

    def counters(self) -> dict[str, int]:
        """Return how many requests were served and refused, and the fate of the samples, since the start."""
        return {
            **self.router.counters,
            **self.registers.quotas.counters,
            **self.router.effects.counters,
            **self.delivery.counters,
            **self.pipeline.counters(),
        }

    def follow(self, settings: NodeSettings) -> None:
        """Apply changed settings; on the router's thread."""
        before, self._settings = self._settings, settings
        self.policy.follow(settings.policy)
        self.registers.quotas.follow(settings.quota, keep_s=settings.runs.keep_s)
        self.runs.follow(settings)
        self.registers.plans.max_plan_bytes = settings.max_plan_bytes
        self.leases.set_limits(
            default_interval_s=settings.metrics.interval_s, min_interval_s=settings.metrics.min_interval_s
        )
        self.leases.end_refused(lambda researcher_id: self.policy.refusal(researcher_id) is not None)
        self.pipeline.reload(settings, self.policy.metric_leaves)
        self.leases.apply()
        if settings.policy.researchers != before.policy.researchers:
            self.delivery.push()  # what waits for one that may ask again

    def take_up(self) -> None:
        """Continue the work of an earlier process: default plans, unchecked plans, jobs; once, at the start."""
        plans = self.registers.plans
        if self._settings.default_plans_dir is not None:
            try:
                for plan in plans.load_defaults(self._settings.default_plans_dir):
                    self.registers.audit.record("plan-default", plan=plan.plan_id, sha256=plan.sha256, name=plan.name)
            except FedmonError as error:
                logger.error("the default plans were not taken in: %s", error)  # noqa: TRY400
        for sha256 in plans.unchecked():
            self.check_plan(sha256)
        self.runs.take_up()
        self.runs.purge()
        self.registers.outbox.expire()
        self.copy_register()
        self.router.effects.purge()

    def check_plan(self, sha256: str) -> None:
        """Have a worker read a plan, unless one does already; on the router's thread."""
        if sha256 not in self._being_read:
            self._being_read.add(sha256)
            store = self.registers.plans.store
            self.workers.post("checks", lambda: check_source(store.read(sha256)), partial(self._take_check, sha256))

    def copy_register(self) -> None:
        """Copy the register if a day has passed; a failure is logged."""
        try:
            self.registers.database.copy_if_due()
        except FedmonError as error:
            logger.error("the register was not copied: %s", error)  # noqa: TRY400  # the sentence says it all

    def save_counts(self) -> None:
        """Count unread messages, and write down refused researchers. Raises StorageError."""
        self.registers.quotas.count_unread()
        self.registers.refused.save()

    def close(self) -> None:
        """Close the files; on the router's thread."""
        for save in (self.save_counts, self.registers.jobs.save):
            try:
                save()
            except FedmonError as error:
                logger.warning("the last counts or news of jobs were not written down: %s", error)
        self.registers.close()

    def _count_sent(self, names: Iterable[str], samples: int) -> None:
        self.registers.audit.count("metrics", names, samples)

    def _send_scalars(self, message: RunScalars) -> bool:
        outgoing = self.dialect.answer(message, None)
        if outgoing is None or not self._send(outgoing):
            return False
        self._count_sent(["user_value"], len(message.scalars))
        return True

    def _on_job_end(self, job: WatchedJob) -> None:
        self._post(lambda: self.registers.audit.record("job-ended", job=job.job_id, reason=job.reason))

    def _fetch(self, url: str, sha256: str | None, done: Callable[[bytes | FedmonError], None]) -> bool:
        def fetch() -> bytes:
            most, urls = self._settings.max_plan_bytes, self._settings.repository.allowed_urls
            return download(url, sha256=sha256, max_bytes=most, deadline_s=DOWNLOAD_TIMEOUT_S, allowed_urls=urls)

        return self.workers.post("plans", fetch, done, most=MAX_DOWNLOADS)

    def _take_check(self, sha256: str, check: CodeCheck | FedmonError) -> None:
        self._being_read.discard(sha256)
        if isinstance(check, FedmonError):
            logger.warning("plan %s cannot be checked: %s", sha256, check)
            return
        with self.registers.database.transaction():
            finding = self.registers.plans.record_check(sha256, check)
            if finding is not None:
                self.registers.announce(finding)
        if finding is not None:
            self.delivery.push(finding.researchers)


class Daemon:
    """One running node: its connection, its control socket and its signals around a `LocalNode`."""

    def __init__(self, folder: NodeFolder, settings: NodeSettings) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._folder, self._settings, self._at_start = folder, settings, settings
        self._started = utc_now()
        self._host = self._link_since = ""
        self._stop_by = Deadline(STOP_WITHIN_S)
        self._actor = Actor("fedmon-router", bulk=MESSAGES_BOUND)
        self._presence = PresenceKeeper(
            node_id=settings.id,
            boot=read_boot(folder.boot_file),
            store=lambda boot: folder.write_private(folder.boot_file, f"{boot}\n".encode()),
            capabilities=lambda: self._node.capabilities,
            streams=lambda: self._node.pipeline.streams,
            publish=lambda topic, payload: self._transport.publish(topic, payload, qos=1, retain=True),
        )
        self._presence.raise_boot()
        self._node = LocalNode(
            folder,
            settings,
            boot=lambda: self._presence.boot,
            post=self._actor.post,
            publish=self._publish_metrics,
            send=self._send,
        )
        self._flooders, self._flood_over = set[str](), 0.0
        self._hold = Backoff(FIRST_HOLD_S, longest_s=LONGEST_HOLD_S)
        self._transport = BrokerConnection(
            settings.broker,
            client_id=kept_client_id(folder.path, settings.id),
            subscriptions=self._subscriptions(),
            on_message=self._on_message,
            on_link=self._on_link,
            will=self._presence.will,
            id_is_contested=lambda: self._presence.duplicate is not None,
            keeps_session=True,
        )
        self._owner = OwnerCommands(
            folder,
            settings,
            self._node.registers,
            environ=os.environ,
            running=RunningNode(
                push=self._node.delivery.push,
                check_plan=self._node.check_plan,
                follow=self._follow,
                live=self._live,
                measuring=self._node.pipeline,
                runs=self._node.runs,
            ),
        )
        self._control = ControlServer(
            folder.path,
            lambda name, args, by: self._actor.call(
                lambda: self._owner.run(name, args, by=by), timeout_s=COMMAND_TIMEOUT_S
            ),
        )
        allows = partial(Throttle(burst=50, per_s=5.0).allows, "log")
        self._logs = OutgoingLogHandler(self._send_log, level=self._node.policy.log_level, allows=allows)
        # Presence tells others of a connection; after a restart of the broker each node would send a record.
        self._logs.addFilter(lambda record: record.name != BrokerConnection.__module__)

    def run(self) -> None:
        """Serve until a signal comes; on the main thread. Raises FedmonError if the node cannot start."""
        with contextlib.ExitStack() as stack:
            try:
                self._start(stack)
                if self._node.policy.obeys_nobody:
                    logger.warning(
                        "node %s obeys no researcher yet: every request is refused; allow one with: "
                        "fedmon node policy allow RESEARCHER --dir %s", self._settings.id, self._folder.path,
                    )  # fmt: skip
                # Of several signals that wait, the lowest number comes first: SIGHUP before SIGTERM.
                while signal.sigwait(signal.sigpending() & _ENDING or _SIGNALS) == signal.SIGHUP:
                    self._actor.post(self._reload)
            finally:
                self._stop_by = Deadline(STOP_WITHIN_S)
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                for number in _ENDING:
                    signal.signal(number, lambda number, _frame: os._exit(128 + number))
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _start(self, stack: contextlib.ExitStack) -> None:
        """Start each part, and note on the stack how it is stopped, in the reverse order."""
        node, every = self._node, self._actor.every
        every(REFRESH_S, self._presence.refresh)
        every(1.0, lambda: node.pipeline.is_started and node.leases.apply())
        every(1.0, node.registers.audit.sync)
        every(1.0, node.runs.tick)
        every(60.0, node.save_counts)
        for job in (node.router.effects.purge, node.registers.outbox.expire, node.runs.purge, node.copy_register):
            every(3600.0, job)
        self._actor.start()
        stack.callback(self._close_files)
        self._actor.post(node.take_up)  # before the owner can ask for a job
        self._control.start()
        stack.callback(lambda: self._control.stop(min(1.0, self._stop_by.left_s())))
        stack.callback(node.runs.close)
        node.workers.start()
        stack.callback(node.workers.stop)
        stack.callback(self._disconnect)  # after the measuring, which sends its last batches
        node.pipeline.start()  # what is measured is known before anybody can ask for it
        stack.callback(node.pipeline.stop)
        self._transport.start()
        fedmon_logger = logging.getLogger("fedmon")
        fedmon_logger.addHandler(self._logs)
        stack.callback(fedmon_logger.removeHandler, self._logs)

    def _disconnect(self) -> None:
        """Publish the farewell once every request that arrived is answered."""
        answered = threading.Event()
        self._actor.post(answered.set, priority=Priority.BULK)
        answered.wait(min(1.5, self._stop_by.left_s()))
        farewell = self._presence.farewell("stopped by its owner")
        self._transport.stop(min(2.0, self._stop_by.left_s()), farewell=farewell)

    def _close_files(self) -> None:
        with contextlib.suppress(BusyError):  # also a machine that stood still during the stop loses nothing
            self._actor.call(self._node.close, timeout_s=max(2.0, self._stop_by.left_s()))
        if not self._actor.close(timeout_s=max(1.0, self._stop_by.left_s()), drop=True):
            logger.error("the node did not end in order")
            os._exit(1)

    # --- called on other threads: they put and return ----------------------------------------------------------------

    def _on_message(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001  # the transport's shape
        sender, quotas = self._node.dialect.sender(topic), self._node.registers.quotas
        if sender is not None and not quotas.admits(sender):
            if sender not in self._flooders and quotas.is_flooded_by(sender):
                self._actor.post(lambda: self._hold_back(sender))
            return
        # A message over the limit is refused for its length: the rest of its bytes need not be kept.
        payload = payload[: codec.MAX_PAYLOAD_BYTES + 1]

        def serve() -> None:
            if topic == topics.status(self._settings.id):
                self._presence.correct(payload, retained=retained)
            else:
                self._node.router.receive(topic, payload, retained=retained)

        self._actor.post(serve, priority=Priority.BULK, size_bytes=len(payload))

    def _on_link(self, host: BrokerHost | None) -> None:
        self._host, self._link_since = str(host or ""), utc_now().isoformat(timespec="seconds")
        if host is not None:
            self._actor.post(self._on_up)

    def _send(self, outgoing: Outgoing) -> bool:
        return self._transport.publish(outgoing.topic, outgoing.payload, qos=outgoing.qos)

    def _publish_metrics(self, payload: bytes) -> bool:
        flat = self._settings.monitoring_topic == "flat"
        topic = topics.MONITORING_FLAT if flat else topics.monitoring(self._settings.id)
        return self._transport.publish(topic, payload, qos=0)

    def _send_log(self, level: str, name: str, text: str, _created: float) -> None:
        if not self._transport.is_connected:
            return
        record = LogRecord(
            node_id=self._settings.id,
            boot=self._presence.boot,
            time=utc_now(),
            level=level,  # type: ignore[arg-type]  # the level names of Python's logging
            logger=name[:256],
            msg=text[:16_000],
        )
        with contextlib.suppress(InvalidMessageError):
            if self._send(self._node.dialect.log(record)):
                self._node.registers.audit.count("logs", [f"{name} {level}"])

    # --- on the router's thread --------------------------------------------------------------------------------------

    def _on_up(self) -> None:
        self._presence.announce()
        self._node.delivery.push()

    def _hold_back(self, researcher_id: str) -> None:
        """Have the broker keep a flood: for a while the node subscribes to the other known researchers alone."""
        if researcher_id in self._flooders:
            return
        if time.monotonic() - self._flood_over > LONGEST_HOLD_S:
            self._hold.reset()
        hold_s = self._hold.next_s()
        logger.debug("researcher %s floods this node, and is not heard for %.0f s", researcher_id, hold_s)
        self._flooders.add(researcher_id)
        self._transport.resubscribe(self._subscriptions())
        self._flood_over = time.monotonic() + hold_s
        self._actor.at(self._flood_over, self._hear_all)

    def _hear_all(self) -> None:
        if time.monotonic() >= self._flood_over:
            self._flooders.clear()
            self._transport.resubscribe(self._subscriptions())

    def _subscriptions(self) -> list[tuple[str, int]]:
        node_id, own = self._settings.id, (topics.status(self._settings.id), 0)
        if not self._flooders:
            return [*self._node.dialect.subscriptions(node_id), own]
        known = {*self._settings.policy.researchers, *self._node.registers.quotas.latest()} - self._flooders
        named = [who for who in known if ID_PATTERN.fullmatch(who)]
        return [
            own,
            *((topics.broadcast(who), 0) for who in named),
            *((topics.command(who, node_id), 1) for who in named),
        ]

    def _reload(self) -> None:
        """Read the settings again; if they are refused, nothing changes."""
        try:
            self._folder.check_private()
            settings = load_node(self._folder.path, os.environ)
            self._node.registers.audit.record("settings-reloaded")
            self._follow(settings)
            logger.info("settings read again from %s", self._folder.settings_file)
        except FedmonError as error:
            logger.error("the settings stay as they were: %s", error)  # noqa: TRY400  # the sentence says it all

    def _follow(self, settings: NodeSettings) -> None:
        """Apply changed settings. The id and the settings of the connection stay until the next start."""
        names = ("id", "broker", "wire", "strict_identity", "monitoring_topic")
        changed = [
            name
            for name in (*names, "recording.enabled", "default_plans_dir")
            if attrgetter(name)(settings) != attrgetter(name)(self._at_start)
        ]
        if changed:
            logger.warning("changed settings that wait for the next start: %s", ", ".join(changed))
        settings = msgspec.structs.replace(settings, **{name: getattr(self._at_start, name) for name in names})
        self._settings = self._owner.settings = settings
        self._node.follow(settings)
        self._logs.setLevel(self._node.policy.log_level)

    def _live(self) -> dict[str, Any]:
        """Return the part of the status that only a running daemon knows; times are RFC 3339 in UTC.

        ``flapping`` says why connections keep getting lost, ``unheard`` whether the broker drops its messages,
        ``duplicate`` is another process with this node's id, ``recording`` is "on", "off", or why samples cannot be
        stored at present. ``sandbox`` is how plans are confined now, None as long as that is not known or no level is
        possible; ``sandbox_problem`` says why none can run though the level would do. ``jobs`` is how many run.
        """
        found = self._node.runs.confinement.found
        error, recorder = self._transport.last_error, self._node.pipeline.recorder
        leases = self._node.leases
        return {
            "pid": os.getpid(),
            "started": self._started.isoformat(timespec="seconds"),
            "boot": self._presence.boot,
            "connected": self._transport.is_connected,
            "since": self._link_since,
            "host": self._host,
            "last_error": "" if error is None else str(error),
            "flapping": self._transport.flapping,
            "unheard": self._presence.is_unheard,
            "duplicate": self._presence.duplicate,
            "recording": "off" if recorder is None else recorder.problem or "on",
            "counters": {
                **self._node.counters(),
                "messages_dropped": self._actor.dropped[Priority.BULK],
                "publishes_dropped": self._transport.dropped,
                "logs_dropped": self._logs.dropped,
            },
            "sandbox": None if found is None else found.level,
            "sandbox_reasons": {} if found is None else dict(found.reasons),
            "sandbox_problem": "" if found is None else found.problem,
            "jobs": self._node.runs.running,
            "leases": [
                {"researcher_id": researcher_id, "instance": instance, "interval_s": leases.granted_s(lease)}
                for (researcher_id, instance), lease in leases.held().items()
            ],
        }


def _dialect(settings: NodeSettings) -> NodeDialect:
    if settings.wire == "fedbiomed4":
        dialect: NodeDialect = fedbiomed_dialect("node")()
        return dialect
    return NodeDialect(strict_identity=settings.identity_is_strict)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the node of a folder in the foreground; `fedmon node start` becomes this process."""
    parser = argparse.ArgumentParser(prog="fedmon node start", description="Run the node of a folder.")
    parser.add_argument("--dir", type=Path, required=True, help="The node's folder.")
    parser.add_argument("--log-level", default="INFO", help="The lowest level of log records to show here.")
    options = parser.parse_args(argv)
    configure_cli_logging(options.log_level)
    try:
        folder = NodeFolder.open(options.dir)
        with folder.hold("daemon"):
            Daemon(folder, load_node(folder.path, os.environ)).run()
    except FedmonError as error:
        print(f"fedmon: {error}", file=sys.stderr)  # noqa: T201  # the last word of a program, not of a library
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
