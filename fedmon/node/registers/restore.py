"""A register that was put back from its copy: brought up to date from the audit, and what is missing told."""

from __future__ import annotations

import logging
import sqlite3
from typing import Protocol

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import FedmonError, StorageError
from fedmon.node.registers.database import Database, timestamp
from fedmon.node.registers.datasets import DatasetRegister
from fedmon.node.registers.plan_records import Decision
from fedmon.node.registers.plans import PlanRegister
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.audit_chain import facts_since
from fedmon.node.requests.outbox import Outbox

logger = logging.getLogger(__name__)

_PLANS = frozenset({"approval-requested", "plan-decision", "plan-delete"})
_DATASETS = frozenset({"dataset-add", "dataset-edit", "dataset-remove"})
_IS_DECISION = "json_extract(message, '$.command') = 'plan-decision'"
_SHOWN = 20


class Registers(Protocol):
    """What a node keeps in its register and its audit: its services, or its owner's desk."""

    database: Database
    audit: Audit
    datasets: DatasetRegister
    plans: PlanRegister
    outbox: Outbox


def restore(registers: Registers, *, node_id: str, boot: int) -> None:
    """Do again what the audit holds of the owner's decisions since the copy; nothing for a register that is whole.

    An approval holds only if the audit is whole since the copy, and the plan's bytes are here. Raises StorageError.
    """
    database, plans = registers.database, registers.plans
    if database.behind is None:
        return
    with database.transaction():
        # Decisions that were told before must not come again after later ones; where a plan stands is told anew.
        told = {
            row["sha256"]
            for row in database.rows(
                f"SELECT json_extract(message, '$.sha256') AS sha256 FROM outbox WHERE {_IS_DECISION}"  # noqa: S608
            )
        }
        database.execute(f"DELETE FROM outbox WHERE {_IS_DECISION}")  # noqa: S608
        decided, lost = _done_again(registers, database.behind)
        for sha256 in sorted(told | decided):
            plan = plans.find(sha256)
            if plan is not None:
                known = Decision(plan=plan, researchers=plans.requesters(plan.plan_id), time=plan.last_action)
                for message in known.messages(node_id=node_id, boot=boot):
                    registers.outbox.add(message)
        report = [f"the register was damaged: {database.mark('damage')}", *lost]
        database.set_mark("report", "\n".join(report))
        database.set_mark("restored", timestamp(utc_now()))
        database.set_mark("behind", None)
        database.set_mark("damage", None)
        registers.audit.record_durably("register-restored", report=report)
    for sentence in report:
        logger.error("register restored: %s", sentence)


def _done_again(registers: Registers, behind: tuple[int, str]) -> tuple[set[str], list[str]]:
    """Return the digests of plans that were decided about since the copy, and sentences about what is lost."""
    database, audit, plans = registers.database, registers.audit, registers.plans
    try:
        lines, is_whole = facts_since(audit.folder, behind, _PLANS | _DATASETS | {"run"})
    except OSError as error:
        raise StorageError(f"the audit in {audit.folder} cannot be read: {error.strerror}") from error
    missing: dict[str, str] = {}
    jobs: list[str] = []
    decided: set[str] = set()
    known_jobs = {row["job_id"] for row in database.rows("SELECT job_id FROM runs")}
    for line in lines:
        if line["event"] == "run":
            jobs += [str(line.get("job"))] if line.get("job") not in known_jobs else []
            continue
        kind, key = ("plan", "sha256") if line["event"] in _PLANS else ("dataset", "dataset_id")
        name = str(line.get(key))
        try:
            with database.transaction():
                (plans if kind == "plan" else registers.datasets).redo(line)
            missing.pop(name, None)
        except (FedmonError, sqlite3.IntegrityError, KeyError, msgspec.ValidationError) as error:
            missing[name] = f"{kind} {line.get('name')!r} ({name}) is not restored: {error}"
        if kind == "plan":
            decided.add(name)
    sentences = [*missing.values()]
    if not is_whole:
        withdrawn = plans.withdraw_all()
        decided.update(withdrawn)
        sentences.append(
            "the audit since then is not whole, so later rejections may be unknown: "
            f"{len(withdrawn)} approved plans are pending again; look at the datasets as well"
        )
    if jobs:
        sentences.append(f"{len(jobs)} jobs begun since then are not known any more: {_some(jobs)}")
    sentences.append(
        f"since then {len(lines) - len(jobs) - len(missing)} changes were done again from the audit; replies and "
        "outcomes that waited are lost, and requests from before the restore are refused"
    )
    return decided, sentences


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
