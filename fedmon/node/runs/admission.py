"""Whether a run may start: every rule of the owner is asked here, and each refusal says what would help."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

import msgspec

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.settings import NodeSettings
from fedmon.common.wire.messages import ErrorCode, PlanStatus
from fedmon.common.wire.runs import Parcel, Run, RunLimits
from fedmon.node.registers.dataset_source import FOLDERS, TABLES
from fedmon.node.registers.datasets import DatasetRecord, DatasetRegister
from fedmon.node.registers.plans import PlanRecord, PlanRegister
from fedmon.node.requests.policy import Policy
from fedmon.node.runs.order import GivenDataset, Limits
from fedmon.node.runs.refusal import RunRefusedError, switched_off

MAX_ARGUMENTS_BYTES = 65_536
MAX_DEPTH = 24
"""A message may be 32 deep, and what it is kept in adds to that."""
_BOUNDS = ("cpu_s", "wall_s", "memory_bytes", "processes", "output_bytes", "tmp_bytes")


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A run that may start: the very bytes that were hashed, and what it gets.

    ``inputs`` are null where there are none, or where they have to be fetched first. ``lowered`` tells of limits that
    are below what was asked for.
    """

    plan: PlanRecord
    source: bytes
    dataset: GivenDataset | None
    limits: Limits
    lowered: str
    inputs: bytes | None


def admit(
    request: Run,
    *,
    settings: NodeSettings,
    policy: Policy,
    plans: PlanRegister,
    datasets: DatasetRegister,
    node_folder: Path,
    running: int,
) -> Admitted:
    """Return what a run gets. Raises RunRefusedError."""
    runs = settings.runs
    if not runs.enabled:
        raise switched_off()
    plan = _approved(plans, request.sha256)
    source = _bytes_of(plans, plan)
    dataset = _dataset(request, policy, datasets, node_folder)
    _check_arguments(request)
    limits, lowered = _limits(request.limits, settings)
    inputs = _inputs(request.inputs, runs.max_input_bytes)
    if running >= runs.max_jobs:
        raise RunRefusedError(
            ErrorCode.BUSY,
            f"{running} jobs run on this node already, its owner allows {runs.max_jobs} at a time: "
            "try again when one is over",
        )
    return Admitted(plan=plan, source=source, dataset=dataset, limits=limits, lowered=lowered, inputs=inputs)


def _approved(plans: PlanRegister, sha256: str) -> PlanRecord:
    plan = plans.find(sha256)
    if plan is None:
        raise RunRefusedError(
            ErrorCode.REFUSED,
            f"this node does not know a plan with SHA-256 {sha256}: ask for the approval of exactly these bytes first",
        )
    if plan.status is PlanStatus.PENDING:
        raise RunRefusedError(
            ErrorCode.REFUSED,
            f"the owner of this node has not decided yet about plan {plan.name!r} (SHA-256 {sha256}): wait, or ask",
        )
    if plan.status is not PlanStatus.APPROVED:
        note = f": {plan.note}" if plan.note else ""
        raise RunRefusedError(
            ErrorCode.REFUSED, f"the owner of this node rejected plan {plan.name!r} (SHA-256 {sha256}){note}"
        )
    return plan


def _bytes_of(plans: PlanRegister, plan: PlanRecord) -> bytes:
    """Read the plan once: what is hashed here is what runs."""
    try:
        return plans.store.read(plan.sha256)
    except StorageError:
        raise RunRefusedError(
            ErrorCode.FAILED,
            f"the bytes of plan {plan.name!r} on this node are missing or are no longer those that its owner approved: "
            "its owner has to delete the plan, then send it again",
        ) from None


def _dataset(request: Run, policy: Policy, datasets: DatasetRegister, node_folder: Path) -> GivenDataset | None:
    if request.dataset_id is None and not request.tags:
        return None
    found = [
        record
        for record in datasets.search(request.tags)
        if request.dataset_id in (None, record.dataset_id, record.name)
        # What a researcher may not see is not there for him: the answer is the same.
        and policy.may_see(request.researcher_id, record.dataset_id, record.name)
    ]
    asked = _asked(request)
    if not found:
        raise RunRefusedError(
            ErrorCode.REFUSED, f"this node offers you no dataset {asked}: list or search its datasets first"
        )
    if len(found) > 1:
        names = ", ".join(f"{record.name!r} ({record.dataset_id})" for record in found[:10])
        raise RunRefusedError(
            ErrorCode.REFUSED, f"{len(found)} datasets of this node are {asked}: name one by its id: {names}"
        )
    return _given(found[0], node_folder)


def _asked(request: Run) -> str:
    tagged = f"with the tags {', '.join(request.tags)}" if request.tags else ""
    named = "" if request.dataset_id is None else repr(request.dataset_id)
    return " ".join(part for part in (named, tagged) if part)


def _given(record: DatasetRecord, node_folder: Path) -> GivenDataset:
    path, named = Path(record.path), f"dataset {record.name!r}"
    mode = None
    with contextlib.suppress(OSError, RuntimeError):
        leads_to = path.resolve(strict=True)
        mode = leads_to.stat().st_mode
    if mode is None or not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        raise RunRefusedError(
            ErrorCode.FAILED,
            f"the files of {named} are not there any more, or this node cannot read them: "
            "tell its owner, who finds it with 'fedmon node dataset list'",
        )
    if leads_to != path:
        raise RunRefusedError(
            ErrorCode.FAILED,
            f"the path of {named} leads through a link now, to another place than where its owner added it: its owner "
            "has to look, and then to give it anew with 'fedmon node dataset edit --path'",
        )
    if not _is_of_its_type(record.data_type, mode):
        raise RunRefusedError(
            ErrorCode.FAILED,
            f"what lies at the path of {named} is no more what a dataset of type {record.data_type!r} is: tell its "
            "owner, who finds it with 'fedmon node dataset list'",
        )
    if node_folder.is_relative_to(path):
        raise RunRefusedError(
            ErrorCode.FAILED,
            f"{named} holds the folder of the node itself, with its keys: its owner has to move one of them before a "
            "plan may read it",
        )
    return GivenDataset(
        dataset_id=record.dataset_id,
        name=record.name,
        data_type=record.data_type,
        path=str(path),
        tags=list(record.tags),
        shape=record.shape,
        dtypes=record.dtypes,
    )


def _is_of_its_type(data_type: str, mode: int) -> bool:
    if data_type in TABLES:
        return stat.S_ISREG(mode)
    return stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and data_type not in FOLDERS)


def _check_arguments(request: Run) -> None:
    size = len(msgspec.json.encode(request.arguments))
    if size > MAX_ARGUMENTS_BYTES:
        raise RunRefusedError(
            ErrorCode.TOO_LARGE,
            f"the arguments take {size} bytes, more than {MAX_ARGUMENTS_BYTES}: send what is large as inputs",
        )
    if _depth(request.arguments.values()) >= MAX_DEPTH:
        raise RunRefusedError(ErrorCode.TOO_LARGE, f"the arguments are nested deeper than {MAX_DEPTH}: flatten them")


def _depth(values: Collection[object]) -> int:
    deepest = 0
    for value in values:
        if isinstance(value, dict):
            deepest = max(deepest, _depth(value.values()))
        elif isinstance(value, list):
            deepest = max(deepest, _depth(value))
    return deepest + 1


def _limits(asked: RunLimits, settings: NodeSettings) -> tuple[Limits, str]:
    runs = settings.runs
    own: dict[str, float] = {name: getattr(runs, f"max_{name}") for name in _BOUNDS}
    lowered = []
    granted = {}
    for name, most in own.items():
        wanted = getattr(asked, name)
        granted[name] = most if wanted is None else min(wanted, most)
        if wanted is not None and wanted > most:
            lowered.append(f"{name} is {most:g}, the most that this node gives, and not {wanted:g}")
    return msgspec.convert(granted, Limits), "; ".join(lowered)


def _inputs(parcel: Parcel | None, max_bytes: int) -> bytes | None:
    """Return inputs that came with the message, checked; None when there are none here."""
    if parcel is None:
        return None
    if sum(given is not None for given in (parcel.json, parcel.base64, parcel.url)) != 1:
        raise RunRefusedError(ErrorCode.MALFORMED, "inputs come in exactly one of `json`, `base64` and `url`")
    if parcel.json is not None and parcel.format != "json":
        raise RunRefusedError(ErrorCode.MALFORMED, "inputs of the format npz come as `base64` or by `url`")
    if parcel.size_bytes > max_bytes:
        raise RunRefusedError(
            ErrorCode.TOO_LARGE,
            f"the inputs have {parcel.size_bytes} bytes; this node takes {max_bytes} (max_input_bytes in [runs])",
        )
    if parcel.url is not None:
        return None
    if parcel.json is not None:
        content = parcel.json.encode()
    else:
        try:
            content = base64.b64decode(parcel.base64 or "", validate=True)
        except (binascii.Error, ValueError):
            raise RunRefusedError(ErrorCode.MALFORMED, "the inputs are not base64: send them again") from None
    check_inputs(content, parcel, max_bytes=max_bytes)
    return content


def check_inputs(content: bytes, parcel: Parcel, *, max_bytes: int) -> None:
    """Raise RunRefusedError unless bytes are the announced ones and a parcel that cannot do harm."""
    from fedmon.plan.parcels import check

    if len(content) != parcel.size_bytes or hashlib.sha256(content).hexdigest() != parcel.sha256:
        raise RunRefusedError(
            ErrorCode.MALFORMED, f"the inputs are not the {parcel.size_bytes} bytes of their digest: send them again"
        )
    try:
        check(parcel.format, content, max_bytes)
    except FedmonError as problem:
        raise RunRefusedError(ErrorCode.MALFORMED, f"the inputs cannot be used: {problem}") from None
