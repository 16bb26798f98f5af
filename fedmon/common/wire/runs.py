"""The messages about runs of approved plans: start, stop, how they stand, and how they ended.

A job is one run of one plan on one node. All nodes of a run know it under the same ``job_id``, which the researcher
makes; a node that is asked to start a job twice starts it once.
"""

from __future__ import annotations

import enum
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.sample import Batch, Sample, user_stream
from fedmon.common.metrics.series import series
from fedmon.common.wire.envelope import Count, Id, LongText, Message, Reply, Request, Sha256, ShortText, Utc
from fedmon.common.wire.samples import AddScalar

MAX_JOBS_LISTED = 100
MAX_TRACE_BYTES = 32_768
MAX_SCALARS = 500
NOT_FINITE = "failed: not finite"
"""Why a reported value is null."""

Level = Literal["bubblewrap", "landlock", "limits"]
"""How a job is confined, strongest first: see docs/security.md."""


class JobState(enum.Enum):
    """Where a job stands: the first two are of one that goes on, every other but HELD is how it ended."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The plan raised, ended with an exit code or by a signal, or is no plan."""
    INVALID_RESULT = "invalid-result"
    """``run`` did not return a mapping of JSON values and plain arrays."""
    STOPPED = "stopped"
    """By the researcher."""
    STOPPED_BY_OWNER = "stopped-by-owner"
    PLAN_REJECTED = "plan-rejected"
    """The owner took the approval back while it ran, or before its result was sent."""
    CPU_LIMIT = "cpu-limit"
    WALL_LIMIT = "wall-limit"
    MEMORY_LIMIT = "memory-limit"
    PROCESS_LIMIT = "process-limit"
    DISK_LIMIT = "disk-limit"
    OUTPUT_LIMIT = "output-limit"
    NOT_STARTED = "not-started"
    """The node could not start it; the reason says why."""
    LOST = "lost"
    """The node, or the keeper of the job, ended while it ran; nothing of it is left running."""
    HELD = "held"
    """The plan has ended, and its result waits for the owner: another state follows."""
    WITHHELD = "withheld"
    """The owner did not let the result leave."""

    @property
    def is_final(self) -> bool:
        """Whether no other state follows."""
        return self is not JobState.HELD and not self.is_running

    @property
    def is_running(self) -> bool:
        """Whether the plan has not ended yet."""
        return self in (JobState.STARTING, JobState.RUNNING)


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """Values on their way: a JSON object, or a ``.npz`` file that fedmon.plan.parcels reads and writes.

    ``sha256`` and ``size_bytes`` are of the bytes themselves. Exactly one of ``json`` (the text of the object),
    ``base64`` (of the file) and ``url`` (of either, in a file repository) is given.
    """

    format: Literal["json", "npz"]
    sha256: Sha256
    size_bytes: Count
    json: str | None = None
    base64: str | None = None
    url: Annotated[str, Meta(max_length=2048)] | None = None

    def content(self) -> bytes | None:
        """Return the bytes that it carries; None behind a URL. Raises InvalidInputError for others than announced."""
        given = sum(each is not None for each in (self.json, self.base64, self.url))
        if given != 1:
            raise InvalidInputError(f"it is given in {given} ways; exactly one of json, base64 and url was expected")
        if self.url is not None:
            return None
        try:
            content = b64decode(self.base64 or "", validate=True) if self.json is None else self.json.encode()
        except ValueError:
            raise InvalidInputError("not valid base64") from None
        if len(content) != self.size_bytes:
            raise InvalidInputError(f"it has {len(content)} bytes, not the {self.size_bytes} that were announced")
        import hashlib  # loads OpenSSL, which `fedmon job` does without

        if (found := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise InvalidInputError(f"its digest is {found[:12]}, not {self.sha256[:12]} as announced")
        return content

    def carrying(self, content: bytes) -> Parcel:
        """Return it with its bytes inside."""
        if self.format == "json":
            return msgspec.structs.replace(self, json=content.decode())
        return msgspec.structs.replace(self, base64=b64encode(content).decode())


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a job; in a request null asks for the node's own limit, which is never exceeded.

    ``cpu_s`` is CPU time of all its processes together, ``tmp_bytes`` the size of its files at once,
    ``output_bytes`` the size of its result.
    """

    cpu_s: Annotated[float, Meta(gt=0)] | None = None
    wall_s: Annotated[float, Meta(gt=0)] | None = None
    memory_bytes: Annotated[int, Meta(gt=0)] | None = None
    processes: Annotated[int, Meta(gt=0)] | None = None
    output_bytes: Annotated[int, Meta(gt=0)] | None = None
    tmp_bytes: Annotated[int, Meta(gt=0)] | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a job; null is unknown. ``energy_j`` is present only if it was measured for the job alone."""

    wall_s: float | None = None
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    energy_j: float | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's error: its type, and if the owner allows it, its text and trace."""

    type: ShortText
    message: LongText | None = None
    traceback: LongText | None = None


class Scalar(msgspec.Struct, frozen=True, kw_only=True):
    """One ``context.report``; ``t`` is Unix time in seconds by the node's clock, ``number`` counts from 0."""

    number: Count
    t: float
    values: dict[str, float | None]
    step: int | None = None


class JobScalar(Scalar, frozen=True, kw_only=True):
    """One ``context.report`` of a job, as it is sent while the job runs.

    ``seq`` is its number in the stream of its researcher, null if the node records nothing; ``mono`` is monotonic
    time in seconds. ``dropped`` counts the values that came too fast until then. ``group`` is the training of the run.
    """

    job_id: Id
    mono: float
    seq: Count | None = None
    dropped: Count = 0
    group: ShortText = ""

    def sample(self) -> Sample:
        """Return it as a sample of its researcher's stream."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        labels = {"job": self.job_id} | ({"group": self.group} if self.group else {})
        for name, value in self.values.items():
            key = series("user_value", name=name, **labels)
            values[key] = value
            if value is None:
                reasons[key] = NOT_FINITE
            if self.step is not None:
                values[series("user_step", name=name, **labels)] = self.step
        if self.dropped:
            values["user_values_dropped_total"] = self.dropped
        return Sample(t=self.t, mono=self.mono, values=values, reasons=reasons)


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one run of a training on one node, sent when it is over; null is not known.

    ``t``, ``mono`` and ``seq`` as in JobScalar. ``transferred_bytes`` are inputs and result, ``rows`` those of the
    dataset.
    """

    job_id: Id
    group: ShortText
    t: float
    mono: float
    seq: Count | None = None
    wall_s: float | None = None
    energy_j: float | None = None
    transferred_bytes: Count | None = None
    rows: Count | None = None

    def sample(self) -> Sample:
        """Return it as a sample of its researcher's stream."""
        costs = {
            "user_run_seconds": self.wall_s,
            "user_run_joules": self.energy_j,
            "user_run_bytes": self.transferred_bytes,
            "user_run_rows": self.rows,
        }
        values: dict[str, float | None] = {
            series(name, job=self.job_id, group=self.group): cost for name, cost in costs.items() if cost is not None
        }
        return Sample(t=self.t, mono=self.mono, values=values)


class RunScalars(Message, frozen=True, kw_only=True, tag="run-scalars"):
    """Values that jobs of one researcher reported since the last such message, to that researcher alone."""

    node_id: Id
    researcher_id: Id
    boot: Count
    scalars: list[JobScalar]
    costs: list[RunCost] = []

    def telemetry(self) -> Iterator[AddScalar | Batch]:
        """Return each report as a scalar of its job, and reports and costs as samples where the node records them."""
        told: list[JobScalar | RunCost] = [*self.scalars, *self.costs]
        for one in told:
            if one.seq is not None:
                sample = one.sample()
                yield Batch(
                    node_id=self.node_id,
                    boot=self.boot,
                    stream=user_stream(self.researcher_id),
                    seq=one.seq,
                    t=[round(sample.t, 3)],
                    mono=[round(sample.mono, 6)],
                    columns={key: [value] for key, value in sample.values.items()},
                    reasons=sample.reasons,
                )
            if isinstance(one, JobScalar):
                yield AddScalar(
                    node_id=self.node_id,
                    researcher_id=self.researcher_id,
                    job_id=one.job_id,
                    metric=one.values,
                    iteration=one.step,
                    t=one.t,
                    number=one.number,
                )


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's description of one job.

    ``sandbox`` is the level in force, null as long as it is not known. ``scalars`` is how many there were so far.
    ``exit_code`` is negative for a signal, null where no process of the plan ended by itself. ``group`` is the training
    that the run is a round of, ``label`` the name that its researcher gave it.
    """

    job_id: Id
    state: JobState
    reason: str = ""
    sha256: Sha256
    name: ShortText = ""
    label: ShortText = ""
    group: ShortText = ""
    dataset_id: str | None = None
    sandbox: Level | None = None
    limits: RunLimits = RunLimits()
    created: Utc
    started: Utc | None = None
    ended: Utc | None = None
    exit_code: int | None = None
    problem: Problem | None = None
    usage: Usage = Usage()
    scalars: Count = 0


# --- requests -------------------------------------------------------------------------------------------------------


class Run(Request, frozen=True, kw_only=True, tag="run"):
    """Run the approved plan with this digest on a dataset: the one with this id, or the only one with all ``tags``.

    With neither id nor tags the plan runs without data. Runs of one ``group`` are the rounds of one training.
    ``label`` is the name of this run.
    """

    job_id: Id
    sha256: Sha256
    dataset_id: ShortText | None = None
    tags: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=64)] = []
    arguments: dict[str, Any] = {}
    inputs: Parcel | None = None
    limits: RunLimits = RunLimits()
    group: ShortText = ""
    label: ShortText = ""


class Stop(Request, frozen=True, kw_only=True, tag="stop"):
    """End a job of this researcher; one that is over stays as it is."""

    job_id: Id


class JobStatus(Request, frozen=True, kw_only=True, tag="job-status"):
    """Ask how a job stands, or with a null ``job_id`` all jobs of this researcher, newest first.

    For one job: ``scalars_from`` asks for its scalars from that number on, ``stdout_from`` and ``stderr_from`` for its
    output from that byte on, and ``result`` for the result in its outcome, which may have been lost.
    """

    job_id: Id | None = None
    offset: Count = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_JOBS_LISTED)] = MAX_JOBS_LISTED
    scalars_from: Count | None = None
    stdout_from: Count | None = None
    stderr_from: Count | None = None
    result: bool = False


# --- replies --------------------------------------------------------------------------------------------------------


class RunReply(Reply, frozen=True, kw_only=True, tag="run"):
    """The job is on the node's disk and starts, or it was there already; a refusal is an `Error` with the reason."""

    job: JobReport


class StopReply(Reply, frozen=True, kw_only=True, tag="stop"):
    """How the job stands now; the end itself comes as its outcome."""

    job: JobReport


class TracePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a job's output, from byte ``offset`` on.

    ``size_bytes`` is the size of its output so far. ``skipped_bytes`` between the requested offset and ``offset`` are
    no longer kept. ``next_offset`` is where to go on.
    """

    offset: Count
    text: str
    next_offset: Count
    size_bytes: Count
    skipped_bytes: Count = 0


class JobsReply(Reply, frozen=True, kw_only=True, tag="job-status"):
    """Jobs of this researcher; ``count`` is how many there are, and ``next_offset`` where the next page starts.

    A trace that the owner does not let leave is null, and ``withheld`` says why. ``result`` is null when it was not
    asked for, there is none, or the node no longer keeps it.
    """

    jobs: list[JobReport]
    count: Count
    next_offset: Count | None = None
    scalars: list[Scalar] = []
    stdout: TracePiece | None = None
    stderr: TracePiece | None = None
    withheld: str = ""
    result: Parcel | None = None


# --- sent by a node of itself ----------------------------------------------------------------------------------------


class JobOutcome(Message, frozen=True, kw_only=True, tag="job-outcome"):
    """A job is over, or held; stays in the outbox until acknowledged. ``result`` is there when it succeeded."""

    node_id: Id
    researcher_id: Id
    id: ShortText
    boot: Count
    job: JobReport
    result: Parcel | None = None
