"""How a job that was taken in is begun: its inputs are fetched, its plan sealed, and both handed to a keeper."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, FedmonError
from fedmon.common.settings import NodeSettings
from fedmon.common.wire.runs import Job, JobState, Level, Run, RunLimits
from fedmon.node.runs import admission
from fedmon.node.runs.conclusion import Conclusion
from fedmon.node.runs.confinement import Confinement
from fedmon.node.runs.going import Going, Phase, closed
from fedmon.node.runs.launching import Launcher
from fedmon.node.runs.order import Interpreter, JobOrder
from fedmon.node.runs.refusal import RunRefusedError
from fedmon.node.runs.sealed import sealed
from fedmon.node.runs.transfers import Transfers

logger = logging.getLogger(__name__)

NOT_STARTED = "the node could not start it; its owner's log says why"
_ENVELOPE = frozenset(
    {"researcher_id", "node_id", "instance", "id", "session", "sequence", "expires", "protocol_version"}
)


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


def taken_in(request: Run, admitted: admission.Admitted, level: Level) -> Job:
    """Return the record of a job that starts."""
    limits = msgspec.structs.asdict(admitted.limits)
    return Job(
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
