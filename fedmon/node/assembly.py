"""The parts of a node, made from its folder and settings, without any connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fedmon import __version__
from fedmon.common.errors import FedmonError
from fedmon.common.settings import NodeSettings
from fedmon.common.wire.dialect import fedbiomed_dialect
from fedmon.common.wire.runs import RunScalars
from fedmon.node.folder import NodeFolder
from fedmon.node.measure.leases import Leases
from fedmon.node.measure.measuring import Measuring
from fedmon.node.measure.monitoring import Monitoring
from fedmon.node.owner.control import ControlServer
from fedmon.node.registers.fetcher import Fetcher
from fedmon.node.registers.jobs import JobRecord
from fedmon.node.registers.plan_checker import PlanChecker
from fedmon.node.registers.plan_records import Verdict
from fedmon.node.registers.state import Registers
from fedmon.node.requests.dialect import Dialect, FedmonDialect, Outgoing, Sender
from fedmon.node.requests.effects import Effects
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.router import Router
from fedmon.node.runs.service import Runs
from fedmon.node.services import Services

if TYPE_CHECKING:
    from fedmon.node.daemon import Daemon

logger = logging.getLogger(__name__)

RUN_COMMANDS = ("run", "stop", "job-status")
CAPABILITIES = ["ping", "list", "search", "approval", "training-plan-status", "monitor", "ack", *RUN_COMMANDS]


class Assembly:
    """Everything of a node but its connection; made on one thread, then owned by the worker's.

    ``hand_over(job)`` runs a job on the worker's thread; ``publish(payload)`` and ``send(outgoing)`` hand over to the
    connection.
    """

    def __init__(
        self,
        folder: NodeFolder,
        settings: NodeSettings,
        *,
        boot: int,
        hand_over: Callable[[Callable[[], None]], object],
        publish: Callable[[bytes], bool],
        send: Callable[[Outgoing], bool],
    ) -> None:
        self._settings, self._hand_over, self._send = settings, hand_over, send
        self._desk: ControlServer | None = None
        self.policy = Policy(settings.policy, settings.id)
        self.dialect = _dialect(settings)
        self.registers = Registers(folder, settings, boot=boot)
        self.audit, database, plans = self.registers.audit, self.registers.database, self.registers.plans
        self.checker = PlanChecker(plans.store.read, on_verdict=self._on_verdict)
        self.fetcher = Fetcher(settings.repository, max_bytes=settings.max_plan_bytes, hand_over=hand_over)
        self.measuring = Measuring(
            settings,
            boot=boot,
            recording_file=folder.recording_file,
            send=publish,
            leaves=self.policy.metric_leaves,
            on_sent=self._sent,
            on_job_end=self._job_ended,
        )
        self._leases = Leases(
            default_interval_s=settings.metrics.interval_s, min_interval_s=settings.metrics.min_interval_s
        )
        self.services = Services(
            node_id=settings.id,
            boot=boot,
            agent_version=__version__,
            database=database,
            datasets=self.registers.datasets,
            plans=plans,
            outbox=self.registers.outbox,
            effects=Effects(database),
            policy=self.policy,
            audit=self.audit,
            monitoring=Monitoring(self._leases, self.measuring),
            check_plan=self.checker.submit,
            fetch=self.fetcher.submit,
            page_bytes=self.dialect.page_bytes,
            recorder=self.measuring.recorder,
        )
        self.router = Router(self.services, self.dialect, send)
        self.runs = Runs(
            self.services,
            settings,
            folder=folder.path,
            measuring=self.measuring,
            hand_over=hand_over,
            send=self._send_scalars,
            push=self.router.push,
            is_heard="run" in self.dialect.commands,
        )
        self.services.runs = self.runs

    @property
    def capabilities(self) -> list[str]:
        """Name what this node answers."""
        spoken = [name for name in CAPABILITIES if name in self.dialect.commands]
        silent = set() if self.services.monitoring.enabled else {"monitor"}
        if not self._settings.runs.enabled:
            silent.update(RUN_COMMANDS)
        return [*self.dialect.marks, *(name for name in spoken if name not in silent)]

    def start(self, daemon: Daemon) -> None:
        """Open the owner's door, and start measuring and checking; the worker runs already. Raises StorageError."""
        from fedmon.node.owner.owner_desk import open_desk

        self._desk = open_desk(daemon)
        self.checker.start()
        self.runs.start_up()
        self._hand_over(self._take_up)
        self.measuring.start()

    def obey(self, settings: NodeSettings) -> None:
        """Follow other rules from now on; on the worker's thread."""
        self._settings = settings
        self.policy = Policy(settings.policy, settings.id)
        self.services.policy = self.policy
        self.runs.follow(settings)
        self._leases.set_limits(
            default_interval_s=settings.metrics.interval_s, min_interval_s=settings.metrics.min_interval_s
        )
        self._leases.end_refused(lambda researcher_id: self.policy.refusal(researcher_id) is not None)
        self.measuring.reload(settings, self.policy.metric_leaves)
        self.services.monitoring.follow()

    def reconnected(self, boot: int) -> None:
        """Give decisions the number of another boot; on the worker's thread. Samples keep that of the process."""
        self.services.boot = boot

    def stop_measuring(self) -> None:
        """End the sampler, and send what it gathered."""
        self.measuring.stop()

    def stop(self, timeout_s: float) -> None:
        """End the threads beside the worker; jobs go on."""
        self.runs.close()
        if self._desk is not None:
            self._desk.stop(min(1.0, timeout_s))
            self.checker.stop(min(1.0, timeout_s))
        self.fetcher.stop(min(0.5, timeout_s))

    def close(self) -> None:
        """Close the files; on the worker's thread."""
        try:
            self.runs.save()
        except FedmonError as error:
            logger.warning("the last news of jobs are read again by the next start: %s", error)
        self.registers.close()

    def _sent(self, names: Iterable[str], samples: int) -> None:
        self.audit.count_all("metrics", names, samples)

    def _send_scalars(self, message: RunScalars) -> bool:
        outgoing = self.dialect.answer(message, to=Sender(researcher_id=message.researcher_id), request=None)
        if outgoing is None or not self._send(outgoing):
            return False
        self._sent(["user_value"], len(message.scalars))
        return True

    def _job_ended(self, job: JobRecord) -> None:
        def write() -> None:
            self.audit.record("job-ended", job=job.job_id, reason=job.reason)

        self._hand_over(write)

    def _take_up(self) -> None:
        """Continue what an earlier process left: default plans, and plans that no worker has read."""
        if self._settings.default_plans_dir is not None:
            try:
                for plan in self.services.plans.load_defaults(self._settings.default_plans_dir):
                    self.audit.record("plan-default", plan=plan.plan_id, sha256=plan.sha256, name=plan.name)
            except FedmonError as error:
                logger.error("the default plans were not taken in: %s", error)  # noqa: TRY400
        for sha256 in self.services.plans.unchecked():
            self.checker.submit(sha256)
        self.runs.take_up()
        self.runs.purge()
        self.copy_register()

    def copy_register(self) -> None:
        """Copy the register if a day has passed; on the worker's thread. A failure is told in the log."""
        try:
            self.services.audit.sync()
            self.services.database.copy_if_due(self.services.audit.end)
        except FedmonError as error:
            logger.error("the register was not copied: %s", error)  # noqa: TRY400  # the sentence says it all

    def _on_verdict(self, sha256: str, verdict: Verdict) -> None:
        self._hand_over(lambda: self._take_verdict(sha256, verdict))

    def _take_verdict(self, sha256: str, verdict: Verdict) -> None:
        with self.services.database.transaction():
            finding = self.services.plans.record_verdict(sha256, verdict)
            if finding is not None:
                self.services.announce(finding)
        if finding is not None:
            self.router.push(finding.researchers)


def _dialect(settings: NodeSettings) -> Dialect:
    if settings.wire == "fedbiomed4":
        dialect: Dialect = fedbiomed_dialect("node")(settings.id)
        return dialect
    return FedmonDialect(strict_identity=settings.identity_is_strict)
