"""Runs of approved plans: accept jobs, start and follow them, and make sure that each of them ends."""

from __future__ import annotations

import contextlib
import datetime
import enum
import hashlib
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import seconds_from_now, utc_now
from fedmon.common.errors import ConflictError, FedmonError, NotFoundError, StorageError
from fedmon.common.files import storage_errors
from fedmon.common.metrics.sample import user_stream
from fedmon.common.settings.values import NodeSettings
from fedmon.common.wire.grants import Grant
from fedmon.common.wire.messages import ErrorCode, PlanStatus
from fedmon.common.wire.runs import (
    JobOutcome,
    JobReport,
    JobScalar,
    JobState,
    Level,
    Parcel,
    Run,
    RunCost,
    RunLimits,
    RunReply,
    RunScalars,
    Stop,
    StopReply,
)
from fedmon.node.measure.jobs import JOB_STREAM
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.measure.publisher import BURST, PER_S
from fedmon.node.registers.state import Registers
from fedmon.node.requests.dialect import DeclinedError, echo
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.quotas import Throttle
from fedmon.node.runs.admission import Admission, Admitted
from fedmon.node.runs.confinement import Confinement
from fedmon.node.runs.folder import (
    FOLDER_MODE,
    TMP,
    Ending,
    Event,
    Interpreter,
    JobFolder,
    JobOrder,
    Logged,
    Reported,
    Started,
)
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.outcome import NoRepositoryError, fetch_inputs, fitting, inline, leaving, store_result
from fedmon.node.runs.register import WITHDRAWN, JobRecord, JobRegister
from fedmon.node.runs.release import HELD, rules_for
from fedmon.node.runs.status import Status
from fedmon.node.workers import Workers

NOT_STARTED = "the node could not start it; its owner's log says why"
NEVER_STARTED = "the node ended before it could start the job: run it again, as a new job"
LOST = "the keeper of the job ended before it; nothing of it is left running"
UNSENT = "the node could not send it (its log says why)"
LOGGER = "fedmon.job"
MAX_SCALARS_BYTES = 90_000
"""The room for scalars in one message; the rest is for the envelope."""
_ENVELOPE = frozenset(
    {"researcher_id", "node_id", "instance", "id", "session", "sequence", "expires", "protocol_version"}
)

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    """The next event that a job waits for."""

    START = "start"
    """Its inputs, or the answer how plans can be confined."""
    KEEPER = "keeper"
    OUTCOME = "outcome"
    """Its result in the repository, or its outcome in the register."""


class ActiveJob:
    """One job whose end is not in the register; belongs to the node's worker.

    ``grant`` admitted it; None for a job of an earlier daemon, which is not admitted again.
    """

    def __init__(
        self, register: JobRegister, record: JobRecord, folder: Path, *, phase: Phase, grant: Grant | None = None
    ) -> None:
        self._register, self.record, self.phase, self.grant = register, record, phase, grant
        self.folder = JobFolder(folder / record.job.job_id)
        self.verdict: tuple[JobReport, Parcel | None] | None = None
        self._told = ""

    @property
    def job(self) -> JobReport:
        """The present state of the job."""
        return self.record.job

    def tell(self, problem: FedmonError) -> None:
        """Log a problem with this job, once while it stays the same."""
        if str(problem) != self._told:
            logger.error("job %s is tried again: %s", self.job.job_id, problem)
        self._told = str(problem)

    def change(self, **changes: Any) -> None:
        """Change the state of the job."""
        self.note(job=msgspec.structs.replace(self.job, **changes))

    def note(self, **changes: Any) -> None:
        """Change its record, in memory until the register is saved."""
        self.record = msgspec.structs.replace(self.record, **changes)
        self._register.note(self.record)


class Runs:
    """The jobs of one node; belongs to its worker, except `close`.

    ``boot()`` returns the node's present boot, ``send(message)`` sends scalars to their researcher,
    ``push(researchers)`` sends the outbox. ``is_heard`` is False on a wire without messages about runs.
    """

    def __init__(
        self,
        registers: Registers,
        policy: Policy,
        settings: NodeSettings,
        *,
        boot: Callable[[], int],
        folder: Path,
        measuring: Pipeline,
        workers: Workers,
        send: Callable[[RunScalars], bool],
        push: Callable[[Iterable[str]], None],
        is_heard: bool,
    ) -> None:
        self._registers, self._policy, self._settings = registers, policy, settings
        self._boot, self._push, self._measuring, self._workers = boot, push, measuring, workers
        self.folder = folder / "runs"
        self.register = registers.jobs
        self._admission = Admission(policy, registers.plans, registers.datasets, folder)
        self.launcher = Launcher(self._poked)
        self.confinement = Confinement(settings.runs, folder, self.launcher, workers, is_heard=is_heard)
        self._scalars = ScalarSender(measuring, send=send, policy=policy)
        self._active: dict[str, ActiveJob] = {}
        self._poked_jobs: set[str] = set()
        self._waiting: list[Callable[[], None]] = []
        self.standing = Status(policy, self.register, self.folder)

    @property
    def running(self) -> int:
        """The number of jobs that use the machine; one whose result is being uploaded does not."""
        return sum(active.phase is not Phase.OUTCOME for active in self._active.values())

    # --- from the researcher ---------------------------------------------------------------------------------------

    def start(self, request: Run) -> RunReply:
        """Accept a job, inside the transaction of its effect; it starts after that.

        One that is known is told as it stands, and one that is refused leaves a line in the audit. Raises
        DeclinedError, ConflictError if the id stands for another job, and StorageError.
        """
        try:
            job = self._accepted(request)
        except DeclinedError as refusal:
            self._registers.audit.record(
                "run-refused",
                job=request.job_id,
                researcher=request.researcher_id,
                sha256=request.sha256,
                code=refusal.code.value,
                reason=str(refusal),
            )
            raise
        return RunReply(job=job, **echo(request, self._policy.node_id))

    def _accepted(self, request: Run) -> JobReport:
        """Return the record of a job; while the node looks how it can confine plans, a new one waits."""
        content = content_of(request)
        known = self.register.find(request.job_id)
        if known is not None:
            if (known.researcher_id, known.content) != (request.researcher_id, content):
                raise ConflictError(f"job id {request.job_id} belongs to another job on this node: make a new one")
            return self.standing.leaving(known)
        admitted = self._admission.admit(request, self._settings, running=self.running)
        ground = self.confinement.ground()
        level = None if ground is None else ground[0]
        shape = None if admitted.dataset is None else admitted.dataset.shape
        record = JobRecord(
            researcher_id=request.researcher_id,
            content=content,
            job=taken_in(request, admitted, level),
            inputs_bytes=0 if request.inputs is None else request.inputs.size_bytes,
            rows=shape[0] if shape else None,
        )
        self.register.keep(record)
        grant_id = "" if admitted.grant is None else admitted.grant.grant_id
        self._registers.plans.grants.use(grant_id)
        self._registers.audit.record(
            "run",
            job=request.job_id,
            researcher=request.researcher_id,
            sha256=request.sha256,
            plan=admitted.plan.name,
            dataset=record.job.dataset_id,
            sandbox=level,
            minimum=self._settings.runs.sandbox,
            inputs=None if request.inputs is None else request.inputs.sha256,
            grant=grant_id,
        )
        self._registers.database.after_commit(lambda: self._begin(request, record, admitted))
        return record.job

    def stop(self, request: Stop) -> StopReply:
        """Stop a job of this researcher, and tell its present state. Raises DeclinedError."""
        record = self.standing.own(request.job_id, request.researcher_id)
        if record is None:
            reason = f"this node knows no job {request.job_id} of researcher {request.researcher_id}"
            raise DeclinedError(ErrorCode.FAILED, reason)
        if record.job.state.is_running:
            reason = f"stopped by researcher {request.researcher_id}"
            self._registers.audit.record("run-stop", job=request.job_id, by=request.researcher_id)
            self._registers.database.after_commit(lambda: self._end(request.job_id, JobState.STOPPED, reason))
        return StopReply(job=self.standing.leaving(record), **echo(request, self._policy.node_id))

    # --- from the owner --------------------------------------------------------------------------------------------

    def stop_by_owner(self, job_id: str, *, by: str) -> None:
        """Stop a job that is not over."""
        self._registers.audit.record("run-stop", job=job_id, by=by)
        self._end(job_id, JobState.STOPPED_BY_OWNER, "stopped by the owner of the node")

    def plan_withdrawn(self, sha256: str) -> None:
        """Stop the jobs of a plan whose approval has ended."""
        for job_id in [job_id for job_id, active in self._active.items() if active.job.sha256 == sha256]:
            self._end(job_id, JobState.PLAN_REJECTED, WITHDRAWN)

    def carry_out_decisions(self) -> None:
        """Send the held results that the owner released, or tell that they are withheld."""
        for record in self.register.held():
            if record.decision is not None and record.job.job_id not in self._active:
                active = self._activate(record, Phase.OUTCOME)
                state = JobState.SUCCEEDED if record.decision.released else JobState.WITHHELD
                job = msgspec.structs.replace(record.job, state=state, reason=record.decision.reason)
                self._take_end(active, job, record.result)

    def follow(self, settings: NodeSettings) -> None:
        """Follow other settings from the next job on, and for those that wait."""
        self._settings = settings
        self.confinement.follow(settings.runs)

    # --- the life of the node --------------------------------------------------------------------------------------

    def take_up(self) -> None:
        """Look how plans can be confined, and follow the jobs of an earlier daemon, or report them as lost."""
        self.confinement.look_if_due()
        with storage_errors(self.folder):
            self.folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        for record in self.register.going_on():
            if record.job.state is JobState.HELD:
                continue
            active = self._activate(record, Phase.KEEPER)
            self._guarded(active, self._look_after)
            if active.phase is Phase.KEEPER:
                # The earlier daemon passed its start on, and the watch ended with that daemon.
                self._guarded(active, lambda active: self._watch(active, active.folder.started()))
            if not self._is_approved(record.job.sha256):
                self.plan_withdrawn(record.job.sha256)
        self.carry_out_decisions()
        self._end_unknown()

    def tick(self) -> None:
        """Look after every job; about once a second."""
        self.confinement.look_if_due()
        waiting, self._waiting = self._waiting, []
        for launch in waiting:
            launch()
        for active in list(self._active.values()):
            self._guarded(active, self._look_after)
        self._scalars.flush()
        self.register.save()

    def purge(self) -> None:
        """Remove the files of jobs that have been kept long enough; held results wait for the owner."""
        self.standing.purge(seconds_from_now(-self._settings.runs.keep_s))
        self._registers.quotas.measure_anew()

    def close(self) -> None:
        """End the launcher; jobs continue, and the next daemon finds them. From any thread."""
        self.launcher.stop()

    # --- how a job begins ------------------------------------------------------------------------------------------

    def _activate(self, record: JobRecord, phase: Phase, grant: Grant | None = None) -> ActiveJob:
        active = ActiveJob(self.register, record, self.folder, phase=phase, grant=grant)
        self._active[record.job.job_id] = active
        return active

    def _begin(self, request: Run, record: JobRecord, admitted: Admitted) -> None:
        """Start a job that was committed: at once, or when its inputs are here."""
        active = self._activate(record, Phase.START, admitted.grant)
        inputs, now = request.inputs, self._settings
        if inputs is None or inputs.url is None:
            self._launch(active, request, admitted)
            return
        most, urls = now.runs.max_input_bytes, now.repository.allowed_urls
        self._workers.post(
            "inputs",
            lambda: fetch_inputs(inputs, active.folder.path, max_bytes=most, allowed_urls=urls),
            lambda fetched: self._launch(active, request, None, fetched),
        )

    def _launch(
        self, active: ActiveJob, request: Run, admitted: Admitted | None, fetched: int | FedmonError | None = None
    ) -> None:
        """Hand a job to a keeper, if it was not stopped meanwhile; ``fetched`` is closed here.

        Without ``admitted`` the job had to wait, and the owner's rules are asked again.
        """
        with contextlib.ExitStack() as opened:
            if isinstance(fetched, int):
                opened.callback(os.close, fetched)
            if active.phase is not Phase.START:
                return
            if isinstance(fetched, FedmonError):
                self._give_up(active, JobState.NOT_STARTED, f"its inputs were not fetched: {fetched}")
                return
            try:
                admitted = admitted or self._admitted_again(active, request)
                ground = self.confinement.ground()
                if ground is None:
                    self._waiting.append(lambda: self._launch(active, request, None, fetched))
                    opened.pop_all()
                    return
                inputs = admitted.inputs if fetched is None else fetched
                order = self._order(active, request, admitted, *ground)
                active.phase = Phase.KEEPER
                self.launcher.launch(order, admitted.source, inputs)
            except (FedmonError, OSError) as problem:
                logger.error("job %s could not be started: %s", active.job.job_id, problem)  # noqa: TRY400
                reason = str(problem) if isinstance(problem, DeclinedError) else NOT_STARTED
                self._give_up(active, JobState.NOT_STARTED, reason)

    def _admitted_again(self, active: ActiveJob, request: Run) -> Admitted:
        refusal = self._policy.refusal(request.researcher_id)
        if refusal is not None:
            raise DeclinedError(ErrorCode.REFUSED, refusal)
        # The job itself is counted already.
        admitted = self._admission.admit(request, self._settings, running=0, counted=active.grant)
        if (admitted.dataset and admitted.dataset.dataset_id) != active.job.dataset_id:
            raise DeclinedError(
                ErrorCode.REFUSED, "its dataset is another one than at its admission: run it again, as a new job"
            )
        limits = msgspec.convert(admitted.limits, RunLimits, from_attributes=True)
        active.change(limits=limits, reason=admitted.lowered)
        return admitted

    def _order(
        self, active: ActiveJob, request: Run, admitted: Admitted, level: Level, python: Interpreter
    ) -> JobOrder:
        runs, dataset = self._settings.runs, admitted.dataset
        return JobOrder(
            job_id=request.job_id,
            node_id=self._settings.id,
            folder=str(active.folder.path),
            name=admitted.plan.name,
            interpreter=python,
            runtime=str(self.confinement.runtime),
            limits=admitted.limits,
            level=level,
            trace_bytes=runs.trace_bytes,
            dataset=admitted.dataset,
            arguments=request.arguments,
            inputs_format=None if request.inputs is None else request.inputs.format,
            devices=list(runs.devices),
            rules=rules_for(
                self._settings.release,
                admitted.grant,
                has_dataset=dataset is not None,
                rows=active.record.rows,
                known=admitted.source + msgspec.json.encode([request.arguments, dataset and dataset.dtypes]),
            ),
        )

    def _give_up(self, active: ActiveJob, state: JobState, reason: str) -> None:
        """Conclude a job without a keeper."""
        self._conclude(active, msgspec.structs.replace(active.job, state=state, reason=reason, ended=utc_now()))

    # --- how a job is followed -------------------------------------------------------------------------------------

    def _poked(self, job_id: str) -> None:
        """Read a job's news on the worker's thread, unless that is to come already; called on the launcher's."""
        if job_id not in self._poked_jobs:
            self._poked_jobs.add(job_id)
            if not self._workers.hand_over(lambda: self._look_at(job_id)):
                self._poked_jobs.discard(job_id)

    def _look_at(self, job_id: str) -> None:
        # Before the look: the news of later pokes may come after it.
        self._poked_jobs.discard(job_id)
        active = self._active.get(job_id)
        if active is not None:
            self._guarded(active, self._look)

    def _guarded(self, active: ActiveJob, look: Callable[[ActiveJob], None]) -> None:
        try:
            look(active)
        except FedmonError as problem:
            # The next look tries it again; other jobs are not affected.
            active.tell(problem)

    def _look(self, active: ActiveJob) -> None:
        """Pass on the news of a job, and take its end. Raises StorageError."""
        if active.phase is not Phase.KEEPER:
            return
        # The ending is read first: all events of before it are there then.
        ending = active.folder.ending()
        for event, read_bytes in active.folder.events(active.record.read_bytes):
            self._take(active, event)
            active.note(read_bytes=read_bytes)
        if ending is not None:
            used, energy_j = ending.usage, None
            if self._measuring.is_started:
                energy_j = self._measuring.job_energy(active.job.job_id, used.wall_s, used.cpu_s, ended=ending.ended)
            job = over(active.job, ending, energy_j=energy_j)
            if ending.state is JobState.SUCCEEDED and not self._is_approved(job.sha256):
                job = msgspec.structs.replace(job, state=JobState.PLAN_REJECTED, reason=WITHDRAWN)
            active.change(usage=job.usage)
            active.note(numbers=ending.numbers)
            self._unwatch(active)
            self._take_end(active, job, ending.result)

    def _take(self, active: ActiveJob, event: Event) -> None:
        match event:
            case Started():
                active.change(state=JobState.RUNNING, started=_utc(event.t), sandbox=event.sandbox)
                self._watch(active, event)
            case Reported():
                active.change(scalars=max(active.job.scalars, event.number + 1))
                self._scalars.add(active.job, active.record.researcher_id, event)
            case Logged():
                self._scalars.log(active.job.job_id, event)

    def _look_after(self, active: ActiveJob) -> None:
        """Look at a job that may have lost its keeper, or whose end could not be written. Raises StorageError."""
        if active.verdict is not None:
            self._conclude(active, *active.verdict)
        elif active.phase is Phase.KEEPER:
            is_alive = active.folder.is_alive()
            self._look(active)
            if not is_alive and active.phase is Phase.KEEPER:
                self._lost(active)

    def _watch(self, active: ActiveJob, started: Started | None) -> None:
        """Measure the processes of a job as a stream, on another thread: a look at /proc takes milliseconds."""
        if not self._measuring.enabled or started is None:
            return
        # Not the job's id, which jobs of other nodes on this machine have, too. No process leaves a pid namespace.
        marker = f"TMPDIR={active.folder.path / TMP}"
        job_id, name = active.job.job_id, active.job.name[:200]

        def watch() -> None:
            try:
                self._measuring.jobs.add(job_id, pids=[started.pid], name=name, marker=marker)
                self._measuring.sampler.sample_now(f"{JOB_STREAM}{job_id}")  # its energy counts from its first sample
            except NotFoundError:
                pass  # it has ended already
            except FedmonError as error:
                logger.info("job %s is not watched: %s", job_id, error)

        self._workers.post("watching", watch)

    def _lost(self, active: ActiveJob) -> None:
        killed = active.folder.kill_leftovers()
        logger.warning("job %s has no keeper: %d of its processes were ended", active.job.job_id, len(killed))
        began = active.job.started is not None or active.folder.had_keeper()
        self._unwatch(active)
        state, reason = (JobState.LOST, LOST) if began else (JobState.NOT_STARTED, NEVER_STARTED)
        self._give_up(active, state, reason)

    def _unwatch(self, active: ActiveJob) -> None:
        if self._measuring.enabled:
            self._workers.post("watching", lambda: self._measuring.jobs.remove(active.job.job_id))

    # --- how a job ends --------------------------------------------------------------------------------------------

    def _end(self, job_id: str, state: JobState, reason: str) -> None:
        """End a job before its time; its outcome comes when all of it has ended."""
        active = self._active.get(job_id)
        if active is None or not active.job.state.is_running:
            return
        if active.phase is Phase.KEEPER:
            try:
                active.folder.stop(state, reason)
            except FedmonError as problem:
                logger.error("job %s cannot be stopped: %s", job_id, problem)  # noqa: TRY400
        elif active.verdict is None:
            self._give_up(active, state, reason)

    def _end_unknown(self) -> None:
        """Stop jobs that run and are not in the register: their ends could not be reported."""
        known = self.register.ids()
        for path in [path for path in self.folder.iterdir() if path.name not in self._active]:
            folder = JobFolder(path)
            try:
                if folder.stop(JobState.LOST, "the node has no record of this job"):
                    logger.warning("job %s runs and is not in the register: it is stopped", path.name)
                elif path.name not in known:
                    folder.kill_leftovers()
                    folder.remove()
            except (FedmonError, OSError) as problem:
                logger.warning("the files of job %s are not removed: %s", path.name, problem)

    def _take_end(self, active: ActiveJob, job: JobReport, parcel: Parcel | None) -> None:
        """Conclude a job; a result that leaves goes in the message or, where it is large, to the repository before."""
        if parcel is None or job.state is not JobState.SUCCEEDED:
            self._conclude(active, job, parcel if job.state is JobState.HELD else None)
            return
        delivered: Parcel | FedmonError | None
        result = active.folder.result
        try:
            delivered = inline(result, parcel)
        except FedmonError as problem:
            delivered = problem
        if delivered is not None:
            self._delivered(active, job, parcel, delivered)
            return
        active.phase = Phase.OUTCOME
        self._workers.post(
            "results",
            lambda: store_result(result, parcel, lambda: self._settings.repository, self._workers.stopping),
            lambda delivered: self._delivered(active, job, parcel, delivered),
        )

    def _delivered(self, active: ActiveJob, job: JobReport, parcel: Parcel, delivered: Parcel | FedmonError) -> None:
        """Conclude a job with its result; one that cannot be sent now waits for the owner, as if a rule held it."""
        decision = active.record.decision
        if active.verdict is not None:
            return  # it was stopped while its result was on its way
        if isinstance(delivered, Parcel):
            self._conclude(active, job, delivered)
        elif isinstance(delivered, NoRepositoryError) and decision is None:
            self._conclude(active, msgspec.structs.replace(job, state=JobState.FAILED, reason=str(delivered)))
        else:
            logger.error("the result of job %s is held: %s", job.job_id, delivered)
            before = job if decision is None else active.job
            rules = before.reason.removesuffix(f": {HELD}").removesuffix(UNSENT).removesuffix("; ")
            reason = f"{'; '.join(filter(None, [rules, UNSENT]))}: {HELD}"
            active.record = msgspec.structs.replace(active.record, decision=None)
            self._conclude(active, msgspec.structs.replace(before, state=JobState.HELD, reason=reason), parcel)

    def _is_approved(self, sha256: str) -> bool:
        plan = self._registers.plans.find(sha256)
        return plan is not None and plan.status is PlanStatus.APPROVED

    def _conclude(self, active: ActiveJob, job: JobReport, result: Parcel | None = None) -> None:
        """Write the end of a job to register, outbox, ledger and audit together; a held one keeps its result.

        The next look repeats it on a full disk.
        """
        if job.state is JobState.NOT_STARTED and active.phase is Phase.KEEPER:
            self.confinement.doubt()
        is_held = job.state is JobState.HELD
        leaves = None if is_held else result
        kept = None if result is None else msgspec.structs.replace(result, json=None, base64=None)
        record = msgspec.structs.replace(active.record, job=job, result=kept)
        if active.verdict is None and job.group and job.usage.wall_s is not None:
            # A node that is killed before the commit takes it again, and the later one counts.
            self._scalars.cost(record, 0 if leaves is None else leaves.size_bytes)
        self._scalars.ended(record.researcher_id)
        active.verdict, active.phase = (job, result), Phase.OUTCOME
        outcome = JobOutcome(
            node_id=self._policy.node_id,
            researcher_id=record.researcher_id,
            id=f"job-{job.job_id}-held" if is_held else f"job-{job.job_id}",
            boot=self._boot(),
            job=leaving(job, output_leaves=self._policy.settings.job_output),
            result=leaves,
        )
        try:
            with self._registers.database.transaction():
                self.register.keep(record, kept_from=None if record.decision is None else utc_now())
                self._registers.outbox.add(outcome)
                # Reports left before a result was held.
                self._registers.ledger.add(
                    record, leaves, scalars=0 if active.job.state is JobState.HELD else job.scalars
                )
                self._registers.audit.record(
                    "run-held" if is_held else "run-outcome",
                    job=job.job_id,
                    researcher=record.researcher_id,
                    sha256=job.sha256,
                    state=job.state.value,
                    reason=job.reason,
                    sandbox=job.sandbox,
                    exit_code=job.exit_code,
                    wall_s=job.usage.wall_s,
                    cpu_s=job.usage.cpu_s,
                    peak_memory_bytes=job.usage.peak_memory_bytes,
                    result_sha256=None if result is None else result.sha256,
                    result_bytes=None if result is None else result.size_bytes,
                )
        except StorageError as problem:
            active.tell(problem)
            return
        self._active.pop(job.job_id, None)
        if job.state is JobState.FAILED:  # nobody could fetch its result
            with contextlib.suppress(OSError):
                active.folder.result.unlink()
        self._registers.quotas.job_ended(job.job_id, record.researcher_id)
        self._push([record.researcher_id])


def taken_in(request: Run, admitted: Admitted, level: Level | None) -> JobReport:
    """Return the record of a job that starts."""
    return JobReport(
        job_id=request.job_id,
        state=JobState.STARTING,
        reason=admitted.lowered,
        sha256=request.sha256,
        name=admitted.plan.name,
        label=request.label,
        group=request.group,
        dataset_id=None if admitted.dataset is None else admitted.dataset.dataset_id,
        sandbox=level,
        limits=msgspec.convert(admitted.limits, RunLimits, from_attributes=True),
        created=utc_now(),
    )


def content_of(request: Run) -> str:
    """Return a digest of a request without its envelope, which differs each time it is asked."""
    asked = {name: value for name, value in msgspec.structs.asdict(request).items() if name not in _ENVELOPE}
    for name in ("group", "label"):
        if not asked[name]:  # nodes that do not know it took the request in with this digest
            del asked[name]
    if request.inputs is not None:
        # The same bytes from another place make the same job.
        asked["inputs"] = [request.inputs.format, request.inputs.sha256]
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()


def over(job: JobReport, ending: Ending, *, energy_j: float | None) -> JobReport:
    """Return a job with the ending that its keeper wrote."""
    job = msgspec.structs.replace(
        job,
        sandbox=ending.sandbox or job.sandbox,
        started=job.started if ending.started is None else _utc(ending.started),
        ended=_utc(ending.ended),
        usage=msgspec.structs.replace(ending.usage, energy_j=energy_j),
        reason="; ".join(filter(None, [ending.reason, job.reason])),  # its limits that were lowered
        **{name: getattr(ending, name) for name in ("state", "exit_code", "problem", "scalars")},
    )
    if not ending.held:
        return job
    return msgspec.structs.replace(job, state=JobState.HELD, reason=f"{ending.held}: {HELD}")


def _mono(t: float) -> float:
    """Return the monotonic time of a Unix time."""
    return time.monotonic() + (t - time.time())


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


class ScalarSender:
    """Passes scalars and logs of jobs on; belongs to the node's worker.

    Scalars that come too fast, or without a connection, are not sent: they are numbered, and a researcher asks for
    missing ones.
    """

    def __init__(self, measuring: Pipeline, *, send: Callable[[RunScalars], object], policy: Policy) -> None:
        self._measuring, self._send, self._policy = measuring, send, policy
        self._throttle = Throttle(burst=BURST, per_s=PER_S)
        self._waiting: defaultdict[str, list[JobScalar | RunCost]] = defaultdict(list)
        self._dropped: Counter[str] = Counter()

    def add(self, job: JobReport, researcher_id: str, event: Reported) -> None:
        """Take one report: it is recorded for its researcher, and goes out with the next message."""
        if not self._throttle.allows(researcher_id, len(event.values)):
            self._dropped[researcher_id] += len(event.values)
            return
        scalar = JobScalar(
            job_id=job.job_id,
            group=job.group,
            mono=_mono(event.t),
            dropped=self._dropped[researcher_id],
            **msgspec.structs.asdict(event),
        )
        self._take(researcher_id, scalar)

    def cost(self, record: JobRecord, result_bytes: int) -> None:
        """Take the cost of a run that is over or held: it is recorded for its researcher, and goes out before that.

        It is taken again, and replaces the earlier one, once a held result leaves.
        """
        job, t = record.job, time.time()
        cost = RunCost(
            job_id=job.job_id,
            group=job.group,
            t=t,
            mono=_mono(t),
            wall_s=job.usage.wall_s,
            energy_j=job.usage.energy_j,
            transferred_bytes=record.inputs_bytes + result_bytes,
            rows=record.rows,
        )
        self._take(record.researcher_id, cost)

    def flush(self) -> None:
        """Send one message to each researcher with news; called once a second."""
        for researcher_id in list(self._waiting):
            self._flush(researcher_id)

    def ended(self, researcher_id: str) -> None:
        """Record and send the scalars of a job that ended, before its outcome."""
        if self._measuring.enabled:
            self._measuring.publisher.flush(user_stream(researcher_id))
        self._flush(researcher_id)

    def _take(self, researcher_id: str, told: JobScalar | RunCost) -> None:
        """Record it in the stream of its researcher, and have it wait for the next message."""
        if self._measuring.enabled:
            stream = user_stream(researcher_id)
            seq = self._measuring.publisher.publish(stream, told.sample())
            told = msgspec.structs.replace(told, seq=seq)
        self._waiting[researcher_id].append(told)

    def _flush(self, researcher_id: str) -> None:
        waiting = self._waiting.pop(researcher_id, [])
        if not waiting or self._policy.refusal(researcher_id) is not None:
            return
        costs = [each for each in waiting if isinstance(each, RunCost)]
        scalars = fitting((each for each in waiting if isinstance(each, JobScalar)), MAX_SCALARS_BYTES)
        node_id, boot = self._policy.node_id, self._measuring.boot
        self._send(RunScalars(node_id=node_id, researcher_id=researcher_id, boot=boot, scalars=scalars, costs=costs))

    def log(self, job_id: str, event: Logged) -> None:
        """Log a line of the plan, unless its words stay here; the policy's level is applied on the way out."""
        level = logging.getLevelNamesMapping()[event.level]
        job_logger = logging.getLogger(LOGGER)
        if self._policy.settings.job_output and job_logger.isEnabledFor(level):
            # A logger for each job would stay for ever; a record can have a name without a logger.
            job_logger.handle(logging.LogRecord(f"{LOGGER}.{job_id}", level, __file__, 0, "%s", (event.message,), None))
