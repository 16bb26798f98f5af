"""Runs approved plans: takes jobs in, starts them, follows them, and sees to it that each of them ends."""

from __future__ import annotations

import datetime
import enum
import hashlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.actor import Actor
from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, FedmonError, NotFoundError, StorageError
from fedmon.common.metrics.sample import user_stream
from fedmon.common.settings import NodeSettings
from fedmon.common.wire.messages import ErrorCode
from fedmon.common.wire.runs import (
    JobOutcome,
    JobReport,
    JobScalar,
    JobsReply,
    JobState,
    JobStatus,
    Level,
    Parcel,
    Run,
    RunCost,
    RunLimits,
    RunScalars,
    Stop,
)
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.measure.publisher import BURST, PER_S
from fedmon.node.registers.state import Registers
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.throttle import Throttle
from fedmon.node.runs.admission import Admitted, RunRefusedError, admit
from fedmon.node.runs.confinement import Confinement
from fedmon.node.runs.folder import FOLDER_MODE, JobFolder
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.order import ORDER, TMP, Ending, Event, JobOrder, Limits, Logged, Reported, Started
from fedmon.node.runs.outcome import Transfers, inline, leaving, without_result
from fedmon.node.runs.register import WITHDRAWN, JobRecord, JobRegister
from fedmon.node.runs.sandbox.kernel import sealed
from fedmon.node.runs.status import Status

NOT_STARTED = "the node could not start it; its owner's log says why"
NEVER_STARTED = "the node ended before it could start the job: run it again, as a new job"
LOST = "what watched over the job ended before it; nothing of it is left running"
LOGGER = "fedmon.job"
MAX_SCALARS_BYTES = 90_000
"""What the scalars of one message may take; the rest of it is for the envelope."""
_FRAME_BYTES, _VALUE_BYTES = 256, 32
_ENVELOPE = frozenset(
    {"researcher_id", "node_id", "instance", "id", "session", "sequence", "expires", "protocol_version"}
)

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    """What is waited for."""

    INPUTS = "inputs"
    KEEPER = "keeper"
    RESULT = "result"
    """The plan is over, and its result on the way to the repository."""
    REGISTER = "register"
    """It is over, and that could not be written yet."""


class ActiveJob:
    """One job that is not over, or whose end is not written down; belongs to the node's worker."""

    def __init__(self, record: JobRecord, folder: Path, *, phase: Phase) -> None:
        self.record, self.phase = record, phase
        self.folder = JobFolder(folder / record.job.job_id)
        self.verdict: tuple[JobReport, Parcel | None] | None = None
        self.is_saved = True
        self._told = ""

    @property
    def job(self) -> JobReport:
        """The job as it stands."""
        return self.record.job

    def tell(self, problem: FedmonError) -> None:
        """Log a problem with this job, once as long as it stays the same."""
        if str(problem) != self._told:
            logger.error("job %s is looked after again: %s", self.job.job_id, problem)
        self._told = str(problem)

    def change(self, **changes: Any) -> None:
        """Take how the job stands from now on."""
        self.record = msgspec.structs.replace(self.record, job=msgspec.structs.replace(self.job, **changes))
        self.is_saved = False


class Runs:
    """The jobs of one node; belongs to its worker but for `start_up`, `close` and what says otherwise.

    ``boot()`` returns the node's present boot, ``hand_over(job)`` runs a job on the worker's thread, ``send(message)``
    sends scalars to their researcher, ``push(researchers)`` has the outbox sent. ``is_heard`` is False on a wire that
    has no words for any of this.
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
        hand_over: Callable[[Callable[[], None]], object],
        send: Callable[[RunScalars], bool],
        push: Callable[[Iterable[str]], None],
        is_heard: bool,
    ) -> None:
        self._registers, self._policy, self._settings, self._node_folder = registers, policy, settings, folder
        self._boot, self._hand_over, self._push, self._is_heard = boot, hand_over, push, is_heard
        self.folder = folder / "runs"
        self.register = JobRegister(registers.database)
        self.launcher = Launcher(self._poked)
        self.confinement = Confinement(settings.runs, folder / "runtime", self.launcher)
        self._transfers = Transfers(settings.repository, hand_over=hand_over)
        self._watch = JobWatch(measuring)
        self._scalars = ScalarSender(measuring, node_id=settings.id, send=send, policy=policy, is_heard=is_heard)
        self._energy_j = measuring.job_energy
        self._active: dict[str, ActiveJob] = {}
        self._status = Status(policy, self.register, self.folder, now=self._now)
        self._poke_lock = threading.Lock()
        self._poked_jobs: set[str] = set()

    @property
    def running(self) -> int:
        """How many jobs take what the machine has; one whose result is on its way does not."""
        return sum(active.phase in (Phase.INPUTS, Phase.KEEPER) for active in self._active.values())

    # --- from the researcher ---------------------------------------------------------------------------------------

    def start(self, request: Run) -> JobReport:
        """Take a job in, and start it once the caller's transaction is committed.

        A job that was taken in before is told as it stands. Raises RunRefusedError, ConflictError, StorageError.
        """
        content = content_of(request)
        known = self.record(request.job_id)
        if known is not None:
            if (known.researcher_id, known.content) != (request.researcher_id, content):
                raise ConflictError(f"job id {request.job_id} stands for another job on this node: make a new one")
            return self._status.leaving(known)
        admitted = self._admitted(request, running=self.running)
        _, level, _ = self.confinement.ground()
        shape = None if admitted.dataset is None else admitted.dataset.shape
        record = JobRecord(
            researcher_id=request.researcher_id,
            content=content,
            job=taken_in(request, admitted, level),
            inputs_bytes=0 if request.inputs is None else request.inputs.size_bytes,
            rows=shape[0] if shape else None,
        )
        self.register.add(record)
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
        )
        self._registers.database.after_commit(lambda: self._begin(request, record, admitted))
        return record.job

    def stop(self, request: Stop) -> JobReport:
        """Have a job of this researcher stopped, and tell how it stands. Raises RunRefusedError."""
        record = self._status.own(request.job_id, request.researcher_id)
        if not record.job.state.is_over:
            reason = f"stopped by researcher {request.researcher_id}"
            self._registers.audit.record("run-stop", job=request.job_id, by=request.researcher_id)
            self._registers.database.after_commit(lambda: self._end(request.job_id, JobState.STOPPED, reason))
        return self._status.leaving(record)

    def status(self, request: JobStatus) -> JobsReply:
        """Tell how jobs of this researcher stand. Raises RunRefusedError."""
        return self._status.answer(request)

    # --- from the owner --------------------------------------------------------------------------------------------

    def stop_by_owner(self, job_id: str, *, by: str) -> JobRecord | None:
        """Have any job stopped; None when there is no such job."""
        record = self.record(job_id)
        if record is not None and not record.job.state.is_over:
            self._registers.audit.record("run-stop", job=job_id, by=by)
            self._end(job_id, JobState.STOPPED_BY_OWNER, "stopped by the owner of the node")
        return record

    def plan_withdrawn(self, sha256: str) -> None:
        """Stop the jobs of a plan that is approved no longer."""
        for job_id in [job_id for job_id, active in self._active.items() if active.job.sha256 == sha256]:
            self._end(job_id, JobState.PLAN_REJECTED, WITHDRAWN)

    def follow(self, settings: NodeSettings) -> None:
        """Obey other settings from the next job on."""
        self._settings = settings
        self._transfers.repository = settings.repository
        if self._is_heard:
            self.confinement.follow(settings.runs)

    # --- the life of the node --------------------------------------------------------------------------------------

    def start_up(self) -> None:
        """Begin to find out how plans can be confined here; from any thread."""
        if self._is_heard:
            self.confinement.start()

    def take_up(self) -> None:
        """Find again what an earlier daemon left: go on with it, take its end, or say that it is lost."""
        try:
            self.folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder {self.folder} of jobs: {error.strerror}") from error
        for record in self.register.going_on():
            active = ActiveJob(record, self.folder, phase=Phase.KEEPER)
            self._active[record.job.job_id] = active
            self._guarded(active, self._look_after)
            if active.phase is Phase.KEEPER:
                self._guarded(active, self._watch_again)
            plan = self._registers.plans.find(record.job.sha256)
            if plan is None or plan.status.value != "approved":
                self.plan_withdrawn(record.job.sha256)
        self._end_unknown()

    def tick(self) -> None:
        """Look after every job, and after the sandbox; about once a second."""
        self.confinement.tick()
        for active in list(self._active.values()):
            self._guarded(active, self._look_after)
        self._scalars.flush()
        self.save()

    def save(self) -> None:
        """Write down how the jobs stand that have news. Raises StorageError."""
        unsaved = [active for active in self._active.values() if not active.is_saved]
        if unsaved:
            with self._registers.database.transaction():
                for active in unsaved:
                    self.register.keep(active.record)
                    active.is_saved = True

    def purge(self) -> None:
        """Remove what was kept of old jobs for long enough."""
        self._status.purge(self._settings.runs.keep_s)

    def close(self) -> None:
        """End the threads beside the worker; jobs go on, and the next daemon finds them. From any thread."""
        self.confinement.join(1.0)
        self.launcher.stop()
        self._transfers.stop()
        self._watch.stop(1.0)

    def record(self, job_id: str) -> JobRecord | None:
        """Return a job as it stands, whose ever it is; None when there is none."""
        active = self._active.get(job_id)
        return self.register.find(job_id) if active is None else active.record

    def records(self, *, limit: int) -> list[JobRecord]:
        """Return the newest jobs of all researchers, as they stand."""
        return [self._now(each) for each in self.register.of(None, offset=0, limit=limit)]

    # --- how a job begins ------------------------------------------------------------------------------------------

    def _admitted(self, request: Run, *, running: int) -> Admitted:
        return admit(
            request,
            settings=self._settings,
            policy=self._policy,
            plans=self._registers.plans,
            datasets=self._registers.datasets,
            node_folder=self._node_folder,
            running=running,
        )

    def _begin(self, request: Run, record: JobRecord, admitted: Admitted) -> None:
        """Start what was committed: at once, or when its inputs are here."""
        active = ActiveJob(record, self.folder, phase=Phase.INPUTS)
        self._active[request.job_id] = active
        parcel = request.inputs
        if parcel is None or parcel.url is None:
            self._launch(active, request, admitted, None)
            return
        self._transfers.fetch(
            parcel,
            active.folder.path,
            max_bytes=self._settings.runs.max_input_bytes,
            done=lambda fetched: self._fetched(active, request, admitted.limits, fetched),
        )

    def _fetched(self, active: ActiveJob, request: Run, limits: Limits, fetched: int | FedmonError) -> None:
        if isinstance(fetched, FedmonError):
            if active.phase is Phase.INPUTS:
                self._give_up(active, JobState.NOT_STARTED, f"its inputs were not fetched: {fetched}")
            return
        if active.phase is not Phase.INPUTS:
            os.close(fetched)  # it was stopped meanwhile
            return
        try:
            # Asked again: the router let the request pass a while ago. The job is counted already.
            refusal = self._policy.refusal(request.researcher_id)
            if refusal is not None:
                raise RunRefusedError(ErrorCode.REFUSED, refusal)
            admitted = self._admitted(request, running=0)
        except RunRefusedError as refused:
            os.close(fetched)
            self._not_started(active, refused)
            return
        # The limits are those that it was told.
        self._launch(active, request, msgspec.structs.replace(admitted, limits=limits), fetched)

    def _launch(self, active: ActiveJob, request: Run, admitted: Admitted, fetched: int | None) -> None:
        """Hand a job to a keeper; what was fetched is closed here."""
        given: list[int] = []
        try:
            ground, level, python = self.confinement.ground()
            given.append(sealed("plan", admitted.source))
            if fetched is None and admitted.inputs is not None:
                fetched = sealed("inputs", admitted.inputs)
            runs = self._settings.runs
            order = JobOrder(
                job_id=request.job_id,
                node_id=self._settings.id,
                folder=str(active.folder.path),
                sha256=admitted.plan.sha256,
                name=admitted.plan.name,
                interpreter=python,
                runtime=str(ground.runtime),
                limits=admitted.limits,
                level=level,
                minimum=runs.sandbox,
                trace_bytes=runs.trace_bytes,
                dataset=admitted.dataset,
                arguments=request.arguments,
                inputs_format=None if request.inputs is None else request.inputs.format,
                devices=list(runs.devices),
            )
            self.launcher.launch(order, given[0], fetched)
        except (FedmonError, OSError) as problem:
            self._not_started(active, problem)
            return
        finally:
            for descriptor in (*given, *([] if fetched is None else [fetched])):
                os.close(descriptor)
        active.phase = Phase.KEEPER

    def _not_started(self, active: ActiveJob, problem: Exception) -> None:
        logger.error("job %s could not be started: %s", active.job.job_id, problem)
        reason = str(problem) if isinstance(problem, RunRefusedError) else NOT_STARTED
        self._give_up(active, JobState.NOT_STARTED, reason)

    def _give_up(self, active: ActiveJob, state: JobState, reason: str) -> None:
        """Conclude a job that no keeper has."""
        self._conclude(active, msgspec.structs.replace(active.job, state=state, reason=reason, ended=utc_now()))

    # --- how a job is followed -------------------------------------------------------------------------------------

    def _poked(self, job_id: str) -> None:
        """Have a job's news read; on the launcher's thread."""
        with self._poke_lock:
            is_first = job_id not in self._poked_jobs
            self._poked_jobs.add(job_id)
        if is_first:
            self._hand_over(lambda: self._look_at(job_id))

    def _look_at(self, job_id: str) -> None:
        with self._poke_lock:
            self._poked_jobs.discard(job_id)
        active = self._active.get(job_id)
        if active is not None:
            self._guarded(active, self._look)

    def _guarded(self, active: ActiveJob, look: Callable[[ActiveJob], None]) -> None:
        try:
            look(active)
        except FedmonError as problem:
            # The next look may find it readable again; other jobs are looked after in any case.
            active.tell(problem)

    def _look(self, active: ActiveJob) -> None:
        """Pass on what is new of a job, and take its end. Raises StorageError."""
        if active.phase is not Phase.KEEPER:
            return
        # The end is looked for first: what happened before it is all there then.
        ending = active.folder.ending()
        while True:
            read_bytes = active.record.read_bytes
            found = active.folder.events(read_bytes)
            for event in found.events:
                self._take(active, event)
            if found.next_offset == read_bytes:
                break
            active.record = msgspec.structs.replace(active.record, read_bytes=found.next_offset)
            active.is_saved = False
            if ending is None:
                break
        if ending is not None:
            energy_j = self._energy_j(active.job.job_id, ending.usage.wall_s)
            job = over(active.job, ending, energy_j=energy_j)
            if job.group:
                self._scalars.cost(active.record, job, ending)
            self._let_go(active)
            self._take_end(active, job, ending)

    def _take(self, active: ActiveJob, event: Event) -> None:
        match event:
            case Started():
                active.change(state=JobState.RUNNING, started=_utc(event.t), sandbox=event.sandbox)
                self._watch.begin(active.job.job_id, event.pid, active.job.name, active.folder.path)
            case Reported():
                active.change(scalars=max(active.job.scalars, event.number + 1))
                self._scalars.add(active.job, active.record.researcher_id, event)
            case Logged():
                self._scalars.log(active.job.job_id, event)

    def _look_after(self, active: ActiveJob) -> None:
        """Look at a job that may have no keeper any more, or whose end could not be written. Raises StorageError."""
        if active.phase is Phase.REGISTER and active.verdict is not None:
            self._conclude(active, *active.verdict)
        elif active.phase is Phase.KEEPER:
            is_alive = active.folder.is_alive()
            self._look(active)
            if not is_alive and active.phase is Phase.KEEPER:
                self._lost(active)

    def _watch_again(self, active: ActiveJob) -> None:
        # Its start was passed on by the daemon before, whose watch went with it.
        started = next((each for each in active.folder.events().events if isinstance(each, Started)), None)
        if started is not None:
            self._watch.begin(active.job.job_id, started.pid, active.job.name, active.folder.path)

    def _lost(self, active: ActiveJob) -> None:
        killed = active.folder.kill_leftovers()
        if killed:
            logger.warning("job %s had lost its keeper: %d processes of it were ended", active.job.job_id, len(killed))
        began = active.job.started is not None or active.folder.had_keeper()
        was_ordered = (active.folder.path / ORDER).exists()
        self._let_go(active)
        if began and was_ordered:
            self._give_up(active, JobState.LOST, LOST)
        else:
            self._give_up(active, JobState.NOT_STARTED, NEVER_STARTED)

    def _let_go(self, active: ActiveJob) -> None:
        self._watch.end(active.job.job_id)
        self._scalars.ended(active.record.researcher_id)

    def _now(self, record: JobRecord) -> JobRecord:
        active = self._active.get(record.job.job_id)
        return record if active is None else active.record

    # --- how a job ends --------------------------------------------------------------------------------------------

    def _end(self, job_id: str, state: JobState, reason: str) -> None:
        """End a job before its time; its outcome comes when all of it has ended."""
        active = self._active.get(job_id)
        if active is None:
            return
        if active.phase is Phase.INPUTS:
            self._give_up(active, state, reason)
        elif active.phase is Phase.KEEPER:
            try:
                active.folder.stop(state, reason)
            except FedmonError as problem:
                logger.error("job %s cannot be stopped: %s", job_id, problem)  # noqa: TRY400

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
            except FedmonError as problem:
                logger.warning("what is left of job %s is not removed: %s", path.name, problem)

    def _take_end(self, active: ActiveJob, job: JobReport, ending: Ending) -> None:
        """Conclude a job as its keeper says, once its result is checked and, where it is large, stored."""
        if ending.state is not JobState.SUCCEEDED or ending.result_format is None or ending.result_sha256 is None:
            self._conclude(active, job)
            return
        result = active.folder.result
        parcel = Parcel(format=ending.result_format, sha256=ending.result_sha256, size_bytes=ending.result_bytes)
        try:
            whole = inline(result, parcel, is_checked=False)
        except FedmonError as problem:
            self._delivered(active, job, problem)
            return
        if whole is not None:
            self._conclude(active, job, whole)
            return
        active.phase = Phase.RESULT
        self._transfers.deliver(result, parcel, lambda delivered: self._delivered(active, job, delivered))

    def _delivered(self, active: ActiveJob, job: JobReport, delivered: Parcel | FedmonError) -> None:
        if isinstance(delivered, Parcel):
            self._conclude(active, job, delivered)
        else:
            self._conclude(active, without_result(job, delivered))

    def _conclude(self, active: ActiveJob, job: JobReport, result: Parcel | None = None) -> None:
        """Tell register, outbox and audit together how a job ended; on a full disk again with the next look."""
        active.verdict, active.phase = (job, result), Phase.REGISTER
        kept = None if result is None else msgspec.structs.replace(result, json=None, base64=None)
        record = msgspec.structs.replace(active.record, job=job, result=kept)
        outcome = JobOutcome(
            node_id=self._policy.node_id,
            researcher_id=record.researcher_id,
            id=f"job-{job.job_id}",
            boot=self._boot(),
            job=leaving(job, output_leaves=self._policy.settings.job_output),
            result=result,
        )
        try:
            with self._registers.database.transaction():
                self.register.keep(record)
                self._registers.outbox.add(outcome)
                self._registers.audit.record(
                    "run-outcome",
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
        active.record = record
        self._active.pop(job.job_id, None)
        self._push([record.researcher_id])


def taken_in(request: Run, admitted: Admitted, level: Level) -> JobReport:
    """Return the record of a job that starts."""
    return JobReport(
        job_id=request.job_id,
        state=JobState.STARTING,
        reason=admitted.lowered,
        sha256=request.sha256,
        name=admitted.plan.name,
        group=request.group,
        dataset_id=None if admitted.dataset is None else admitted.dataset.dataset_id,
        sandbox=level,
        limits=msgspec.convert(admitted.limits, RunLimits, from_attributes=True),
        created=utc_now(),
    )


def content_of(request: Run) -> str:
    """Return a digest of what a run is, however often and from wherever it is asked for."""
    asked = {name: value for name, value in msgspec.structs.asdict(request).items() if name not in _ENVELOPE}
    if not request.group:  # nodes without groups took it in with this digest
        del asked["group"]
    if request.inputs is not None:
        # Where the same bytes come from makes no other job.
        asked["inputs"] = [request.inputs.format, request.inputs.sha256]
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()


def over(job: JobReport, ending: Ending, *, energy_j: float | None) -> JobReport:
    """Return a job as its keeper says that it ended."""
    return msgspec.structs.replace(
        job,
        sandbox=ending.sandbox or job.sandbox,
        started=job.started if ending.started is None else _utc(ending.started),
        ended=_utc(ending.ended),
        usage=msgspec.structs.replace(ending.usage, energy_j=energy_j),
        **{name: getattr(ending, name) for name in ("state", "reason", "exit_code", "problem", "scalars")},
    )


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


class JobWatch:
    """Has jobs watched, on a thread of its own: a look at /proc takes milliseconds, which no job waits for.

    Methods are safe from any thread, and return at once; the thread is there from the first job on.
    """

    def __init__(self, measuring: Pipeline) -> None:
        self._measuring = measuring
        self._actor: Actor | None = None

    def begin(self, job_id: str, pid: int, name: str, folder: Path) -> None:
        """Watch a process and its descendants, or those that left it, as the stream of the job of a folder."""
        if not self._measuring.enabled:
            return
        if self._actor is None:
            self._actor = Actor("fedmon-runs-watching")
            self._actor.start()
        # Not the job's id, which jobs of other nodes on this machine have, too. In a pid namespace nothing gets away.
        marker = f"TMPDIR={folder / TMP}"
        add = partial(self._measuring.jobs.add, job_id, pids=[pid], name=name[:200], marker=marker)
        self._actor.post(lambda: self._change(job_id, add))

    def end(self, job_id: str) -> None:
        """Let go of a job that is over."""
        if self._actor is not None:
            self._actor.post(lambda: self._change(job_id, lambda: self._measuring.jobs.remove(job_id)))

    def stop(self, timeout_s: float) -> None:
        """End the thread."""
        if self._actor is not None:
            self._actor.close(timeout_s=timeout_s)

    def _change(self, job_id: str, change: Callable[[], object]) -> None:
        try:
            change()
        except NotFoundError:
            pass  # it has ended already
        except FedmonError as error:
            logger.info("job %s is not watched: %s", job_id, error)


class ScalarSender:
    """Passes scalars and logs of jobs on; belongs to the node's worker.

    ``send(message)`` hands a message to the connection of its researcher. Scalars that come too fast, or while there is
    no connection, are not sent: they are numbered, and a researcher asks for those that are missing.
    """

    def __init__(
        self,
        measuring: Pipeline,
        *,
        node_id: str,
        send: Callable[[RunScalars], object],
        policy: Policy,
        is_heard: bool,
    ) -> None:
        self._measuring, self._node_id, self._send = measuring, node_id, send
        self._policy, self._is_heard = policy, is_heard
        self._throttle = Throttle(burst=BURST, per_s=PER_S)
        self._waiting: dict[str, list[JobScalar]] = {}
        self._costs: dict[str, list[RunCost]] = {}
        self._bytes: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def add(self, job: JobReport, researcher_id: str, event: Reported) -> None:
        """Take one report: it is recorded for its researcher, and goes out with the next message."""
        if not self._throttle.allows(researcher_id, len(event.values)):
            self._dropped[researcher_id] += len(event.values)
            return
        scalar = JobScalar(
            job_id=job.job_id,
            group=job.group,
            number=event.number,
            t=event.t,
            mono=time.monotonic() + (event.t - time.time()),
            values=event.values,
            step=event.step,
            dropped=self._dropped[researcher_id],
        )
        if self._measuring.enabled and event.values:
            stream = user_stream(researcher_id)
            seq = self._measuring.publisher.publish(stream, scalar.sample(), is_private=True)
            scalar = msgspec.structs.replace(scalar, seq=seq)
        size_bytes = _FRAME_BYTES + sum(len(name) + _VALUE_BYTES for name in event.values)
        if self._is_heard and self._bytes[researcher_id] + size_bytes <= MAX_SCALARS_BYTES:
            self._waiting.setdefault(researcher_id, []).append(scalar)
            self._bytes[researcher_id] += size_bytes

    def cost(self, record: JobRecord, job: JobReport, ending: Ending) -> None:
        """Take the cost of a run that is over: it is recorded for its researcher, and goes out before the outcome."""
        cost = RunCost(
            job_id=job.job_id,
            group=job.group,
            t=ending.ended,
            mono=time.monotonic() + (ending.ended - time.time()),
            wall_s=job.usage.wall_s,
            energy_j=job.usage.energy_j,
            transferred_bytes=record.inputs_bytes + ending.result_bytes,
            rows=record.rows,
        )
        if self._measuring.enabled:
            stream = user_stream(record.researcher_id)
            seq = self._measuring.publisher.publish(stream, cost.sample(), is_private=True)
            cost = msgspec.structs.replace(cost, seq=seq)
        if self._is_heard:
            self._costs.setdefault(record.researcher_id, []).append(cost)

    def flush(self) -> None:
        """Send what waits, one message for each researcher; called once a second."""
        for researcher_id in list(self._waiting):
            self._flush(researcher_id)

    def ended(self, researcher_id: str) -> None:
        """Have the scalars of a job that ended recorded and sent, before its outcome."""
        self._measuring.publisher.flush(user_stream(researcher_id))
        self._flush(researcher_id)

    def _flush(self, researcher_id: str) -> None:
        scalars, costs = self._waiting.pop(researcher_id, []), self._costs.pop(researcher_id, [])
        self._bytes.pop(researcher_id, None)
        if not (scalars or costs) or self._policy.refusal(researcher_id) is not None:
            return
        boot = self._measuring.boot
        message = RunScalars(
            node_id=self._node_id, researcher_id=researcher_id, boot=boot, scalars=scalars, costs=costs
        )
        self._send(message)

    def log(self, job_id: str, event: Logged) -> None:
        """Log what the plan logged, unless its words stay here; the policy's level is applied on the way out."""
        level = logging.getLevelNamesMapping()[event.level]
        job_logger = logging.getLogger(LOGGER)
        if self._policy.settings.job_output and job_logger.isEnabledFor(level):
            # A logger for each job would stay for ever; a record can have a name without one.
            job_logger.handle(logging.LogRecord(f"{LOGGER}.{job_id}", level, __file__, 0, "%s", (event.message,), None))
