"""Runs approved plans: takes jobs in, starts them, follows them, and sees to it that each of them ends."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import ConflictError, FedmonError, StorageError
from fedmon.common.log import without_paths
from fedmon.common.settings import NodeSettings, RunsSettings
from fedmon.common.wire.messages import ErrorCode
from fedmon.common.wire.runs import JobReport, JobsReply, JobState, JobStatus, Level, Run, RunLimits, RunScalars, Stop
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.registers.state import Registers
from fedmon.node.requests.policy import Policy
from fedmon.node.runs import admission
from fedmon.node.runs.conclusion import Conclusion
from fedmon.node.runs.folder import FOLDER_MODE, JobFolder
from fedmon.node.runs.follower import Following, Telling, Watching
from fedmon.node.runs.going import Going, Phase, closed
from fedmon.node.runs.launching import Launcher
from fedmon.node.runs.order import LEVELS, Interpreter, JobOrder, is_weaker
from fedmon.node.runs.refusal import RunRefusedError
from fedmon.node.runs.register import WITHDRAWN, JobRecord, JobRegister
from fedmon.node.runs.sealed import sealed
from fedmon.node.runs.status import Status
from fedmon.node.runs.transfers import Transfers

LOOK_TIMEOUT_S = 10.0
LOOK_AGAIN_S = (60.0, 600.0, 3600.0)
"""When it is looked again for the strongest level, after looks that did not find it; the last one is repeated."""

NOT_STARTED = "the node could not start it; its owner's log says why"
_ENVELOPE = frozenset(
    {"researcher_id", "node_id", "instance", "id", "session", "sequence", "expires", "protocol_version"}
)

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


class Beginning:
    """Begins jobs; belongs to the node's worker. ``settings`` are those in force.

    ``admit_again(request)`` asks the owner's rules once more, for a job whose inputs took their time. It raises
    RunRefusedError.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        confinement: Confinement,
        launcher: Launcher,
        transfers: Transfers,
        conclusion: Conclusion,
        admit_again: Callable[[Run], admission.Admitted],
    ) -> None:
        self.settings, self._admit_again = settings, admit_again
        self._confinement, self._launcher = confinement, launcher
        self._transfers, self._conclusion = transfers, conclusion

    def begin(self, going: Going, request: Run) -> None:
        """Start what was committed: at once, or when its inputs are here."""
        parcel = request.inputs
        if parcel is not None and parcel.url is not None:
            self._transfers.fetch(
                parcel,
                going.folder.path,
                max_bytes=self.settings.runs.max_input_bytes,
                done=lambda fetched: self._fetched(going, request, fetched),
            )
            return
        content = None if going.admitted is None else going.admitted.inputs
        try:
            inputs = None if content is None else sealed("inputs", content)
        except FedmonError as problem:
            self._not_started(going, problem)
            return
        self._launch(going, request, inputs)

    def give_up(self, going: Going, state: JobState, reason: str) -> None:
        """Conclude a job that no keeper has."""
        job = msgspec.structs.replace(going.job, state=state, reason=reason, ended=utc_now())
        self._conclusion.conclude(going, job)

    def _fetched(self, going: Going, request: Run, fetched: int | FedmonError) -> None:
        if isinstance(fetched, FedmonError):
            if going.phase is Phase.INPUTS:
                self.give_up(going, JobState.NOT_STARTED, f"its inputs were not fetched: {fetched}")
        elif going.phase is not Phase.INPUTS:
            closed(fetched)  # it was stopped meanwhile
        else:
            try:
                again = self._admit_again(request)
            except RunRefusedError as refusal:
                closed(fetched)
                self._not_started(going, refusal)
                return
            limits = again.limits if going.admitted is None else going.admitted.limits  # those that it was told
            going.admitted = msgspec.structs.replace(again, limits=limits)
            self._launch(going, request, fetched)

    def _launch(self, going: Going, request: Run, inputs: int | None) -> None:
        """Hand a job to a keeper; ``inputs`` are closed here."""
        plan = None
        try:
            admitted = going.admitted
            if admitted is None:
                raise ConflictError(f"job {request.job_id} was started before")
            ground, level, python = self._confinement.ground()
            plan = sealed("plan", admitted.source)
            self._launcher.launch(self._order(request, going, admitted, level, python, ground.runtime), plan, inputs)
        except (FedmonError, OSError) as problem:
            self._not_started(going, problem)
            return
        finally:
            closed(plan)
            closed(inputs)
        going.phase, going.admitted = Phase.KEEPER, None

    def _order(
        self,
        request: Run,
        going: Going,
        admitted: admission.Admitted,
        level: Level,
        python: Interpreter,
        runtime: Path,
    ) -> JobOrder:
        runs = self.settings.runs
        return JobOrder(
            job_id=request.job_id,
            node_id=self.settings.id,
            folder=str(going.folder.path),
            sha256=admitted.plan.sha256,
            name=admitted.plan.name,
            interpreter=python,
            runtime=str(runtime),
            limits=admitted.limits,
            level=level,
            minimum=runs.sandbox,
            trace_bytes=runs.trace_bytes,
            dataset=admitted.dataset,
            arguments=request.arguments,
            inputs_format=None if request.inputs is None else request.inputs.format,
            devices=list(runs.devices),
        )

    def _not_started(self, going: Going, problem: Exception) -> None:
        logger.error("job %s could not be started: %s", going.job.job_id, problem)
        reason = str(problem) if isinstance(problem, RunRefusedError) else NOT_STARTED
        self.give_up(going, JobState.NOT_STARTED, reason)


def taken_in(request: Run, admitted: admission.Admitted, level: Level) -> JobReport:
    """Return the record of a job that starts."""
    limits = msgspec.structs.asdict(admitted.limits)
    return JobReport(
        job_id=request.job_id,
        state=JobState.STARTING,
        reason=admitted.lowered,
        sha256=request.sha256,
        name=admitted.plan.name,
        dataset_id=None if admitted.dataset is None else admitted.dataset.dataset_id,
        sandbox=level,
        limits=msgspec.convert({name: limits[name] for name in RunLimits.__struct_fields__}, RunLimits),
        created=utc_now(),
    )


def content_of(request: Run) -> str:
    """Return a digest of what a run is, however often and from wherever it is asked for."""
    asked = {name: value for name, value in msgspec.structs.asdict(request).items() if name not in _ENVELOPE}
    if request.inputs is not None:
        # Where the same bytes come from makes no other job.
        asked["inputs"] = [request.inputs.format, request.inputs.sha256]
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; ``level`` is null where no level at all is to be had, ``reasons`` say why not a stronger one.

    ``problem`` says why no plan can run here though the level would do; empty otherwise.
    """

    level: Level | None
    reasons: Mapping[str, str]
    interpreter: Interpreter | None
    runtime: Path
    problem: str = ""


class Confinement:
    """Looks until the strongest level works, and again when the settings change; `tick` is for one thread.

    ``beside()`` is done on the same thread after each look, with an error of it told as the problem.
    """

    def __init__(self, settings: RunsSettings, runtime: Path, *, beside: Callable[[], None]) -> None:
        self._settings, self._runtime, self._beside = settings, runtime, beside
        self._lock = threading.Lock()
        self._found: Ground | None = None
        self._there = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._again: Deadline | None = None

    def start(self) -> None:
        """Begin to look, unless no plan runs here."""
        if not self._settings.enabled:
            return
        with self._lock:
            self._again = None
            self._thread = threading.Thread(target=self._look, name="fedmon-confinement")
            self._thread.start()

    def follow(self, settings: RunsSettings) -> None:
        """Look again if settings that matter here changed, or if the last look failed."""
        before, self._settings = self._settings, settings
        changed = (before.python, before.devices) != (settings.python, settings.devices)
        if changed or self._thread is None or self._again is not None:
            self.join()
            self._failures = 0
            if changed:
                self._there.clear()
            self.start()

    def tick(self) -> None:
        """Look again when it is time after a look that failed; for about once a second."""
        if self._again is not None and self._again.passed():
            self.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the look."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def found(self) -> Ground | None:
        """What was found, None as long as it is looked for."""
        return self._found

    def ground(self) -> tuple[Ground, Level, Interpreter]:
        """Return what a plan runs in, after a look that is not over yet. Raises RunRefusedError."""
        if not self._there.wait(LOOK_TIMEOUT_S) or self._found is None:
            raise RunRefusedError(ErrorCode.BUSY, "this node still finds out how it can confine plans: try again")
        found, minimum = self._found, self._settings.sandbox
        why = without_paths("; ".join(filter(None, [*map(": ".join, found.reasons.items()), found.problem])))
        if found.level is None or is_weaker(found.level, minimum):
            has = found.level or "none"
            raise RunRefusedError(
                ErrorCode.NO_SANDBOX,
                f"this node can confine plans at level {has!r} and its owner asks for {minimum!r} at least "
                f"(sandbox in [runs]){f'; {why}' if why else ''}",
            )
        if found.problem or found.interpreter is None:
            raise RunRefusedError(ErrorCode.FAILED, f"this node cannot run plans: {why}")
        return found, found.level, found.interpreter

    def _look(self) -> None:
        from fedmon.node.runs.sandbox import interpreter, levels
        from fedmon.plan import runtime

        level: Level | None = None
        reasons: Mapping[str, str] = {}
        python: Interpreter | None = None
        problem = ""
        try:
            available = levels.available(self._settings.devices, python=self._settings.python)
            level, reasons = available.level, available.reasons
            python = interpreter.look_at(self._settings.python)
            runtime.lay_out(self._runtime, python=python.executable)
            self._beside()
        except (FedmonError, OSError) as error:
            problem = str(error)
        found = Ground(level=level, reasons=reasons, interpreter=python, runtime=self._runtime, problem=problem)
        if found != self._found:
            if problem:
                logger.error("no plan can run on this node: %s", problem)
            logger.info("plans run at level %s, %s is asked for at least", level, self._settings.sandbox)
        self._found = found
        self._there.set()
        if level != LEVELS[0] or problem:
            self._again = Deadline(LOOK_AGAIN_S[min(self._failures, len(LOOK_AGAIN_S) - 1)])
            self._failures += 1
