"""Admission of runs: all rules of the owner are checked here, and each refusal names a remedy."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.common.settings.values import NodeSettings
from fedmon.common.text import plural, size
from fedmon.common.wire.grants import Grant
from fedmon.common.wire.messages import ErrorCode, PlanStatus
from fedmon.common.wire.runs import Parcel, Run, RunLimits
from fedmon.node.registers.datasets import DatasetRecord, DatasetRegister
from fedmon.node.registers.grants import grant_for, request_words
from fedmon.node.registers.plans import PlanRecord, PlanRegister
from fedmon.node.requests.dialect import DeclinedError
from fedmon.node.requests.policy import Policy
from fedmon.node.runs.folder import GivenDataset, Limits
from fedmon.plan.parcels import contents
from fedmon.plan.values import MAX_ARGUMENTS_BYTES


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A run that may start: exactly the bytes that were hashed, its dataset, limits and inputs.

    ``inputs`` are None if there are none, or if they have to be fetched. ``lowered`` names limits below the request.
    ``grant`` is the one that admitted it.
    """

    plan: PlanRecord
    grant: Grant | None
    source: bytes
    dataset: GivenDataset | None
    limits: Limits
    lowered: str
    inputs: bytes | None


class Admission:
    """Checks runs by all rules of the owner; belongs to the node's worker."""

    def __init__(self, policy: Policy, plans: PlanRegister, datasets: DatasetRegister, node_folder: Path) -> None:
        self._policy, self._plans, self._datasets, self._node_folder = policy, plans, datasets, node_folder

    def admit(self, request: Run, settings: NodeSettings, *, running: int, counted: Grant | None = None) -> Admitted:
        """Return the parts of a run. Raises DeclinedError.

        A run that had to wait is ``counted`` among those of the grant that admitted it.
        """
        runs = settings.runs
        if not runs.enabled:
            raise DeclinedError(
                ErrorCode.UNSUPPORTED,
                "this node runs no plans: its owner would allow it with `enabled = true` in [runs]",
            )
        plan = self._approved(request.sha256)
        try:
            source = self._plans.store.read(plan.sha256)  # once: exactly these bytes are hashed and run
        except StorageError:
            raise DeclinedError(
                ErrorCode.FAILED,
                f"the bytes of plan {plan.name!r} on this node are missing or differ from those that its owner "
                "approved: its owner must delete the plan, then send it again",
            ) from None
        dataset = self._dataset(request)
        taken = len(msgspec.json.encode(request.arguments))
        if taken > MAX_ARGUMENTS_BYTES:
            raise DeclinedError(
                ErrorCode.TOO_LARGE,
                f"the arguments take {taken} bytes, more than {MAX_ARGUMENTS_BYTES}: send large values as inputs",
            )
        grant = self._granted(plan, request, dataset, counted)
        limits, lowered = _limits(request.limits, settings)
        inputs = _inputs(request.inputs, runs.max_input_bytes)
        if running >= runs.max_jobs:
            raise DeclinedError(
                ErrorCode.BUSY,
                f"{plural(running, 'job runs', 'jobs run')} on this node already, its owner allows {runs.max_jobs} at "
                "a time: try again when one is over",
            )
        return Admitted(
            plan=plan, grant=grant, source=source, dataset=dataset, limits=limits, lowered=lowered, inputs=inputs
        )

    def _approved(self, sha256: str) -> PlanRecord:
        plan = self._plans.find(sha256)
        if plan is not None and plan.status is PlanStatus.APPROVED:
            return plan
        named = f"plan with SHA-256 {sha256}" if plan is None else f"plan {plan.name!r} (SHA-256 {sha256})"
        if plan is None:
            reason = f"this node does not know a {named}: ask for the approval of exactly these bytes first"
        elif plan.status is PlanStatus.PENDING:
            reason = f"the owner of this node has not decided yet about {named}: wait, or ask"
        else:
            reason = f"the owner of this node rejected {named}{plan.note and f': {plan.note}'}"
        raise DeclinedError(ErrorCode.REFUSED, reason)

    def _granted(self, plan: PlanRecord, request: Run, dataset: GivenDataset | None, counted: Grant | None) -> Grant:
        """Return the grant that admits a run. Raises DeclinedError with the words that ask for one."""
        # The run itself is among those that are used up; the grant that admitted it is asked first.
        records = [
            msgspec.structs.replace(each, used=each.used - 1) if each.grant == counted else each
            for each in sorted(self._plans.grants.of(plan.sha256), key=lambda each: each.grant != counted)
        ]
        dataset_id = None if dataset is None else dataset.dataset_id
        seen = self._policy.seen(request.researcher_id, self._datasets.all()).items()
        found = grant_for(records, request, dataset_id, {each: record.name for each, record in seen})
        if isinstance(found, Grant):
            return found
        raise DeclinedError(
            ErrorCode.OUTSIDE_GRANT,
            f"plan {plan.name!r} (SHA-256 {plan.sha256}) is approved here, but not for this run: {found}. Ask for it "
            f"with {request_words(plan.name, dataset.name if dataset else None, found)}",
        )

    def _dataset(self, request: Run) -> GivenDataset | None:
        if request.dataset_id is None and not request.tags:
            return None
        # A hidden dataset and a missing one get the same answer.
        seen = self._policy.seen(request.researcher_id, self._datasets.search(request.tags)).values()
        found = [each for each in seen if request.dataset_id in (None, each.dataset_id, each.name)]
        if len(found) == 1:
            return self._given(found[0])
        tagged = f"with the tags {', '.join(request.tags)}" if request.tags else ""
        asked = " ".join(filter(None, [request.dataset_id and repr(request.dataset_id), tagged]))
        if not found:
            reason = f"this node offers you no dataset {asked}: list or search its datasets first"
        else:
            names = ", ".join(f"{record.name!r} ({record.dataset_id})" for record in found[:10])
            reason = f"{len(found)} datasets of this node are {asked}: name one by its id: {names}"
        raise DeclinedError(ErrorCode.REFUSED, reason)

    def _given(self, record: DatasetRecord) -> GivenDataset:
        if problem := record.problem(self._node_folder):
            raise DeclinedError(
                ErrorCode.FAILED,
                f"this node gives dataset {record.name!r} to no plan: {problem}; its owner finds it with 'fedmon node "
                "dataset list'",
            )
        return msgspec.convert(record, GivenDataset, from_attributes=True)


def _limits(asked: RunLimits, settings: NodeSettings) -> tuple[Limits, str]:
    lowered = []
    granted: dict[str, float] = {}
    for name in RunLimits.__struct_fields__:
        wanted, most = getattr(asked, name), getattr(settings.runs, f"max_{name}")
        granted[name] = most if wanted is None else min(wanted, most)
        if wanted is not None and wanted > most:
            told = size if name.endswith("_bytes") else "{:g}".format
            lowered.append(f"{name} is {told(most)}, the most that this node gives, and not {told(wanted)}")
    return msgspec.convert(granted, Limits), "; ".join(lowered)


def _inputs(parcel: Parcel | None, max_bytes: int) -> bytes | None:
    """Return the checked inputs of the message; None without inputs, and for those behind a URL."""
    if parcel is None:
        return None
    if parcel.size_bytes > max_bytes:
        raise DeclinedError(
            ErrorCode.TOO_LARGE,
            f"the inputs have {parcel.size_bytes} bytes; this node takes {max_bytes} (max_input_bytes in [runs])",
        )
    try:
        content = parcel.content()
        if content is not None:
            contents(parcel.format, memoryview(content))
    except InvalidInputError as problem:
        raise DeclinedError(ErrorCode.MALFORMED, f"the inputs cannot be used: {problem}") from None
    return content
