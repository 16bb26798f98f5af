"""Runs approved plans: takes jobs in, starts them, follows them, and sees to it that each of them ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from fedmon.common.errors import ConflictError, FedmonError, StorageError
from fedmon.common.settings import NodeSettings
from fedmon.common.wire.messages import ErrorCode
from fedmon.common.wire.runs import Job, JobsReply, JobState, JobStatus, Run, RunScalars, Stop
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.registers.state import Registers
from fedmon.node.requests.policy import Policy
from fedmon.node.runs import admission
from fedmon.node.runs.beginning import Beginning, content_of, taken_in
from fedmon.node.runs.conclusion import Conclusion
from fedmon.node.runs.confinement import Confinement
from fedmon.node.runs.folder import FOLDER_MODE, JobFolder
from fedmon.node.runs.following import Following
from fedmon.node.runs.going import Going, Phase
from fedmon.node.runs.launching import Launcher
from fedmon.node.runs.refusal import RunRefusedError
from fedmon.node.runs.register import JobRecord, JobRegister
from fedmon.node.runs.status import Status
from fedmon.node.runs.telling import Telling
from fedmon.node.runs.transfers import Transfers
from fedmon.node.runs.watching import Watching
from fedmon.node.runs.withdrawal import WITHDRAWN

logger = logging.getLogger(__name__)


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
        self._hand_over, self._is_heard = hand_over, is_heard
        self.folder = folder / "runs"
        self.register = JobRegister(registers.database)
        self.launcher = Launcher(self._poked)
        self.confinement = Confinement(settings.runs, folder / "runtime", beside=self.launcher.start)
        self._transfers = Transfers(settings.repository, hand_over=hand_over)
        self._watching = Watching(measuring)
        self._telling = Telling(measuring, node_id=settings.id, send=send, policy=policy, is_heard=is_heard)
        self._going: dict[str, Going] = {}
        self._conclusion = Conclusion(
            registers, policy, self.register, self._transfers, boot=boot, push=push, gone=self._gone
        )
        self._beginning = Beginning(
            settings,
            confinement=self.confinement,
            launcher=self.launcher,
            transfers=self._transfers,
            conclusion=self._conclusion,
            admit_again=self._admitted_again,
        )
        self._following = Following(self._conclusion, self._telling, self._watching, energy_j=measuring.job_energy)
        self._status = Status(policy, self.register, self.folder, self._going)
        self._poke_lock = threading.Lock()
        self._poked_jobs: set[str] = set()

    @property
    def running(self) -> int:
        """How many jobs take what the machine has; one whose result is on its way does not."""
        return sum(going.phase in (Phase.INPUTS, Phase.KEEPER) for going in self._going.values())

    # --- from the researcher ---------------------------------------------------------------------------------------

    def start(self, request: Run) -> Job:
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
        record = JobRecord(researcher_id=request.researcher_id, content=content, job=taken_in(request, admitted, level))
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

    def stop(self, request: Stop) -> Job:
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
        for job_id in [job_id for job_id, going in self._going.items() if going.job.sha256 == sha256]:
            self._end(job_id, JobState.PLAN_REJECTED, WITHDRAWN)

    def follow(self, settings: NodeSettings) -> None:
        """Obey other settings from the next job on."""
        self._settings = self._beginning.settings = settings
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
            going = Going(record, JobFolder(self.folder / record.job.job_id), phase=Phase.KEEPER)
            self._going[record.job.job_id] = going
            self._guarded(going, self._following.take_up)
            plan = self._registers.plans.find(record.job.sha256)
            if plan is None or plan.status.value != "approved":
                self.plan_withdrawn(record.job.sha256)
        self._end_unknown()

    def tick(self) -> None:
        """Look after every job, and after the sandbox; about once a second."""
        self.confinement.tick()
        for going in list(self._going.values()):
            self._guarded(going, self._following.look_after)
        self._telling.flush()
        self.save()

    def save(self) -> None:
        """Write down how the jobs stand that have news. Raises StorageError."""
        unsaved = [going for going in self._going.values() if not going.is_saved]
        if unsaved:
            with self._registers.database.transaction():
                for going in unsaved:
                    self.register.keep(going.saved())
                    going.is_saved = True

    def purge(self) -> None:
        """Remove what was kept of old jobs for long enough."""
        self._status.purge(self._settings.runs.keep_s)

    def close(self) -> None:
        """End the threads beside the worker; jobs go on, and the next daemon finds them. From any thread."""
        self.confinement.join(1.0)
        self.launcher.stop()
        self._transfers.stop()
        self._watching.stop(1.0)

    def record(self, job_id: str) -> JobRecord | None:
        """Return a job as it stands, whose ever it is; None when there is none."""
        going = self._going.get(job_id)
        return self.register.find(job_id) if going is None else going.record

    def records(self, *, limit: int) -> list[JobRecord]:
        """Return the newest jobs of all researchers, as they stand."""
        found = self.register.of(None, offset=0, limit=limit)
        return [self._going[each.job.job_id].record if each.job.job_id in self._going else each for each in found]

    # --- inside ----------------------------------------------------------------------------------------------------

    def _admitted(self, request: Run, *, running: int) -> admission.Admitted:
        return admission.admit(
            request,
            settings=self._settings,
            policy=self._policy,
            plans=self._registers.plans,
            datasets=self._registers.datasets,
            node_folder=self._node_folder,
            running=running,
        )

    def _admitted_again(self, request: Run) -> admission.Admitted:
        """Ask again for a job that is counted already, and whose request the router let pass a while ago."""
        refusal = self._policy.refusal(request.researcher_id)
        if refusal is not None:
            raise RunRefusedError(ErrorCode.REFUSED, refusal)
        return self._admitted(request, running=0)

    def _begin(self, request: Run, record: JobRecord, admitted: admission.Admitted) -> None:
        going = Going(record, JobFolder(self.folder / request.job_id), phase=Phase.INPUTS, admitted=admitted)
        self._going[request.job_id] = going
        self._beginning.begin(going, request)

    def _end(self, job_id: str, state: JobState, reason: str) -> None:
        """End a job before its time; its outcome comes when all of it has ended."""
        going = self._going.get(job_id)
        if going is None:
            return
        if going.phase is Phase.INPUTS:
            self._beginning.give_up(going, state, reason)
        elif going.phase is Phase.KEEPER:
            try:
                going.folder.stop(state, reason)
            except FedmonError as problem:
                logger.error("job %s cannot be stopped: %s", job_id, problem)  # noqa: TRY400

    def _end_unknown(self) -> None:
        """Stop what runs and is not in the register: nobody would ever hear of it."""
        try:
            found = [path for path in self.folder.iterdir() if path.name not in self._going]
        except FileNotFoundError:
            return
        known = self.register.ids()
        for path in found:
            folder = JobFolder(path)
            try:
                if folder.stop(JobState.LOST, "the node has no record of this job"):
                    logger.warning("job %s runs and is not in the register: it is stopped", path.name)
                elif path.name not in known:
                    folder.kill_leftovers()
                    folder.remove()
            except FedmonError as problem:
                logger.warning("what is left of job %s is not removed: %s", path.name, problem)

    def _gone(self, job_id: str) -> None:
        self._going.pop(job_id, None)

    def _poked(self, job_id: str) -> None:
        """Have a job's news read; on the launcher's thread."""
        with self._poke_lock:
            is_first = job_id not in self._poked_jobs
            self._poked_jobs.add(job_id)
        if is_first:
            self._hand_over(lambda: self._look(job_id))

    def _look(self, job_id: str) -> None:
        with self._poke_lock:
            self._poked_jobs.discard(job_id)
        going = self._going.get(job_id)
        if going is not None:
            self._guarded(going, self._following.look)

    def _guarded(self, going: Going, look: Callable[[Going], None]) -> None:
        try:
            look(going)
        except FedmonError as problem:
            # The next look may find it readable again; other jobs are looked after in any case.
            going.tell(problem)
