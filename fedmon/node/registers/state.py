"""The registers of one node, opened together, and restored from copy and audit if their file was damaged."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from typing import Any

import msgspec

from fedmon.common.clock import timestamp, utc_now
from fedmon.common.errors import FedmonError
from fedmon.common.files import Closing
from fedmon.common.settings.values import NodeSettings
from fedmon.common.text import joined, plural
from fedmon.node.folder import NodeFolder, read_boot
from fedmon.node.registers.database import Database
from fedmon.node.registers.datasets import DatasetRegister
from fedmon.node.registers.plans import Decision, PlanRegister
from fedmon.node.requests.audit import Audit, facts_since
from fedmon.node.requests.outbox import Outbox
from fedmon.node.requests.quotas import Quotas, RefusedResearchers
from fedmon.node.runs.register import JobRegister, ReleaseDecision, ReleaseLedger

logger = logging.getLogger(__name__)

_PLANS = frozenset({"approval-requested", "plan-decision", "plan-delete"})
_DATASETS = frozenset({"dataset-add", "dataset-edit", "dataset-remove"})
_RELEASES = frozenset({"result-release", "result-withhold"})
_ANNOUNCED = """SELECT json_extract(message, '$.sha256') AS sha256 FROM outbox
    WHERE json_extract(message, '$.command') = 'plan-decision'"""


class Registers(Closing):
    """Audit, database, datasets, plans, jobs, outbox, quotas and refused researchers of one node; a context manager.

    For one thread at a time. A register that was put back from its copy is brought up to date from the audit: an
    approval holds only if the audit is whole since the copy, and the plan's bytes are here.
    """

    def __init__(self, folder: NodeFolder, settings: NodeSettings) -> None:
        """Open the files; the caller holds the folder's lock. Raises StorageError."""
        self._node_id, self._boot_file = settings.id, folder.boot_file
        with contextlib.ExitStack() as opened:
            self.audit = opened.enter_context(Audit(folder.path))
            self.database = opened.enter_context(Database(folder.database_file, self.audit))
            self.datasets = DatasetRegister(self.database)
            self.plans = PlanRegister(self.database, folder.plans_dir, max_plan_bytes=settings.max_plan_bytes)
            self.jobs, self.ledger = JobRegister(self.database), ReleaseLedger(self.database)
            self.outbox = Outbox(self.database)
            self.refused = RefusedResearchers(self.database)
            self.quotas = Quotas(
                self.database, self.audit, settings.quota, runs_dir=folder.runs_dir, keep_s=settings.runs.keep_s
            )
            if self.database.behind is not None:
                self._restore(self.database.behind)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the files."""
        self._opened.close()

    def announce(self, decision: Decision) -> None:
        """Put the messages of a decision into the outbox; inside the transaction that made it."""
        for message in decision.messages(node_id=self._node_id, boot=read_boot(self._boot_file)):
            self.outbox.add(message)

    def _restore(self, behind: tuple[int, str]) -> None:
        """Redo the owner's decisions since the copy, as the audit holds them, and report the losses."""
        database, plans = self.database, self.plans
        with database.transaction():
            # Decisions that were told before must not come again after later ones; where a plan stands is told anew.
            told = {row["sha256"] for row in database.rows(_ANNOUNCED)}
            database.execute("DELETE FROM outbox WHERE json_extract(message, '$.command') = 'plan-decision'")
            decided, lost = self._redo(behind)
            for sha256 in sorted(told | decided):
                plan = plans.find(sha256)
                for decision in [] if plan is None else plans.standing(plan):
                    self.announce(decision)
            report = [f"the register was damaged: {database.mark('damage')}", *lost]
            database.set_mark("report", "\n".join(report))
            database.set_mark("restored", timestamp(utc_now()))
            database.set_mark("behind", None)
            database.set_mark("damage", None)
            self.audit.record("register-restored", report=report)
            self.audit.sync()
        for sentence in report:
            logger.error("register restored: %s", sentence)

    def _redo(self, behind: tuple[int, str]) -> tuple[set[str], list[str]]:
        """Return the digests of plans that were decided about since the copy, and sentences about losses."""
        lines, is_whole = facts_since(self.audit.folder, behind, _PLANS | _DATASETS | _RELEASES | {"run"})
        missing: dict[str, str] = {}
        jobs: list[str] = []
        unsure = [str(line.get("job")) for line in lines if line["event"] in _RELEASES and not self._redo_release(line)]
        decided: set[str] = set()
        for line in [each for each in lines if each["event"] not in _RELEASES]:
            if line["event"] == "run":
                jobs.append(str(line.get("job")))
                self.plans.grants.use(str(line.get("grant")))
                continue
            kind, key = ("plan", "sha256") if line["event"] in _PLANS else ("dataset", "dataset_id")
            name = str(line.get(key))
            try:
                with self.database.transaction():
                    (self.plans if kind == "plan" else self.datasets).redo(line)
                if line["event"] != "approval-requested":  # a request brings back no lost approval
                    missing.pop(name, None)
            except (FedmonError, sqlite3.IntegrityError, KeyError, msgspec.ValidationError) as error:
                missing[name] = f"{kind} {line.get('name')!r} ({name}) is not restored: {error}"
            if kind == "plan":
                decided.add(name)
        sentences = [*missing.values()]
        if not is_whole:
            withdrawn = self.plans.withdraw_all()
            decided.update(withdrawn)
            sentences.append(
                "the audit since then is not whole, so later rejections may be unknown: "
                f"{len(withdrawn)} approved plans are pending again; look at the datasets as well"
            )
        if jobs:
            sentences.append(f"{plural(len(jobs), 'job')} begun since then, no longer known: {joined(jobs, most=20)}")
        if again := [each for each in unsure if each not in jobs]:
            sentences.append(
                f"{plural(len(again), 'result')} decided about since then may wait for a decision again: look at "
                f"'fedmon node audit show' before you release one: {joined(again, most=20)}"
            )
        sentences.append(
            f"since then {len(lines) - len(jobs) - len(missing) - len(unsure)} changes were done again from the audit; "
            "replies and outcomes that waited are lost, as are counts of 'fedmon node released', and requests from "
            "before the restore are refused"
        )
        return decided, sentences

    def _redo_release(self, line: dict[str, Any]) -> bool:
        """Have the decision about a held result carried out again; return whether it is the result of that time."""
        for record in self.jobs.held():
            digest = None if record.result is None else record.result.sha256
            if (record.job.job_id, digest) == (line.get("job"), line.get("result_sha256")):
                released = line["event"] == "result-release"
                decision = ReleaseDecision(released=released, by=str(line.get("by")), note=str(line.get("note")))
                self.jobs.keep(msgspec.structs.replace(record, decision=decision))
                return True
        return False
