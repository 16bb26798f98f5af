"""The register of training plans: what was asked for, what the owner decided, and the exact bytes of it."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.wire.messages import Approval, PlanStatus
from fedmon.node.registers.database import Database, timestamp
from fedmon.node.registers.plan_catalogue import PlanCatalogue
from fedmon.node.registers.plan_records import Decision, PlanRecord, PlanType, Verdict
from fedmon.node.registers.plan_source import MAX_TEXT_LENGTH, checked_name, read_plan_file
from fedmon.node.registers.plan_store import PlanStore

logger = logging.getLogger(__name__)

DEFAULT_MAX_PLAN_BYTES = 1_048_576
MAX_PENDING_PER_RESEARCHER = 200


class AuditTrail(Protocol):
    """Where a decision is written down before it counts."""

    def record_durably(self, event: str, **facts: object) -> object:
        """Write one line and have it on the disk, or raise StorageError."""


class PlanRegister(PlanCatalogue):
    """Training plans by their exact bytes; belongs to the thread of its database.

    Every change of a status is written to the audit, on the disk, before it is committed here: a decision without its
    line cannot happen, while a crash between the two leaves a line about a decision that did not take hold. Methods
    may run inside ``database.transaction()``, to commit together with effects and outbox.

    New bytes are committed with their record, in one write to the disk, and kept there until their own file is safe on
    the disk too: see `settle`.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        audit: AuditTrail,
        max_plan_bytes: int = DEFAULT_MAX_PLAN_BYTES,
    ) -> None:
        """Use ``folder`` for the bytes of plans, and settle what an earlier process left. Raises StorageError."""
        super().__init__(database)
        self._audit, self._max_plan_bytes = audit, max_plan_bytes
        self.store = PlanStore(folder)
        self.store.clear_staged()
        self._settle_if_possible()

    def request(self, approval: Approval, source: bytes) -> PlanRecord:
        """Take in the bytes that a researcher wants to have approved; returns what is known of them.

        Bytes that are here already keep their record and status, whoever asks, and this researcher will hear of
        decisions too. Raises InvalidInputError when digest, size or name are not what they must be, ConflictError when
        this researcher has too many undecided plans here, StorageError when nothing could be kept.
        """
        digest = hashlib.sha256(source).hexdigest()
        if digest != approval.sha256:
            raise InvalidInputError(f"the plan's bytes have SHA-256 {digest} and not {approval.sha256}: send it again")
        if len(source) != approval.size_bytes:
            raise InvalidInputError(f"the plan has {len(source)} bytes and not {approval.size_bytes}: send it again")
        name = checked_name(source, approval.name, approval.description, max_bytes=self._max_plan_bytes)
        with self._database.transaction():
            plan = self.find(digest)
            if plan is None:
                self._refuse_flood(approval.researcher_id)
                plan = self._insert(
                    source, name, approval.description, type_=PlanType.REQUESTED, researcher_id=approval.researcher_id
                )
            else:
                self.store.write(source, durably=False)  # mends a file that was lost or altered
            self._database.execute(
                "INSERT OR IGNORE INTO requesters (plan_id, researcher_id, requested) VALUES (?, ?, ?)",
                (plan.plan_id, approval.researcher_id, timestamp(utc_now())),
            )
        return plan

    def register(self, source: bytes, *, name: str, description: str = "", by: str = "") -> PlanRecord:
        """Take in the owner's own plan; it is approved by that.

        Raises ConflictError when a plan with these bytes is here already: approve that one.
        """
        name = checked_name(source, name, description, max_bytes=self._max_plan_bytes)
        with self._database.transaction():
            known = self.find(hashlib.sha256(source).hexdigest())
            if known is not None:
                raise ConflictError(
                    f"these bytes are plan {known.plan_id} ({known.name!r}, {known.status.value}) already; "
                    f"approve it with: fedmon node plan approve {known.plan_id}"
                )
            plan = self._insert(source, name, description, type_=PlanType.REGISTERED, status=PlanStatus.APPROVED, by=by)
            self._database.execute("DELETE FROM removed_defaults WHERE sha256 = ?", (plan.sha256,))
        return plan

    def load_defaults(self, folder: Path) -> tuple[PlanRecord, ...]:
        """Take in every ``*.py`` of a folder as a default plan, pending until the owner approves it.

        Returns those that are new; a file that cannot be used is reported in the log. A changed file is another plan.
        One that was deleted stays away until its file changes, or until it is asked for or registered. Raises
        InvalidInputError when there is no such folder.
        """
        if not folder.is_dir():
            raise InvalidInputError(f"there is no folder {folder} of default plans: make it, or change the setting")
        new = []
        with self._database.transaction():
            removed = {row["sha256"] for row in self._database.rows("SELECT sha256 FROM removed_defaults")}
            for path in sorted(folder.glob("*.py")):
                try:
                    source = read_plan_file(path, self._max_plan_bytes)
                    name = checked_name(source, path.stem, "", max_bytes=self._max_plan_bytes)
                except InvalidInputError as error:
                    logger.warning("default plan %s was left out: %s", path, error)
                    continue
                digest = hashlib.sha256(source).hexdigest()
                if digest not in removed and self.find(digest) is None:
                    new.append(self._insert(source, name, "", type_=PlanType.DEFAULT))
        return tuple(new)

    def source(self, reference: str) -> bytes:
        """Return a plan's exact bytes, checked against its digest. Raises NotFoundError, StorageError."""
        return self.store.read(self.get(reference).sha256)

    def decide(
        self,
        reference: str,
        status: PlanStatus,
        *,
        note: str = "",
        by: str = "",
        sha256: str | None = None,
    ) -> Decision:
        """Approve or reject a plan; put the messages of the returned decision into the outbox, in one transaction.

        ``sha256`` is what the owner was shown: when given, only those bytes are decided about. Deciding the same once
        more changes nothing and tells nobody. Raises NotFoundError, ConflictError when the digest is another,
        InvalidInputError, StorageError when the bytes are damaged or audit or register cannot be written.
        """
        if len(note) > MAX_TEXT_LENGTH:
            raise InvalidInputError(f"the note has {len(note)} characters; at most {MAX_TEXT_LENGTH} travel")
        with self._database.transaction():
            plan = self.get(reference)
            if sha256 is not None and sha256 != plan.sha256:
                raise ConflictError(f"plan {plan.plan_id} has SHA-256 {plan.sha256} and not {sha256}: look at it again")
            if (plan.status, plan.note) == (status, note):
                return Decision(plan=plan, researchers=(), time=plan.last_action)
            if status is PlanStatus.APPROVED:
                self.settle()
                self.store.read(plan.sha256)
            moment = utc_now()
            self._write_down(plan, status, note=note, by=by)
            self._database.execute(
                "UPDATE plans SET status = ?1, note = ?2, modified = ?3, last_action = ?3, decided = ?4 "
                "WHERE plan_id = ?5",
                (
                    status.value,
                    note,
                    timestamp(moment),
                    None if status is PlanStatus.PENDING else timestamp(moment),
                    plan.plan_id,
                ),
            )
            return Decision(plan=self.get(plan.plan_id), researchers=self.requesters(plan.plan_id), time=moment)

    def reset(self, reference: str, *, by: str = "") -> Decision:
        """Make a plan pending again, without its note."""
        return self.decide(reference, PlanStatus.PENDING, by=by)

    def delete(self, reference: str, *, by: str = "") -> PlanRecord:
        """Forget a plan and its approval; the researchers' status requests then find nothing.

        A default plan does not come back from its folder until its file changes.
        """
        with self._database.transaction():
            plan = self.get(reference)
            self._audit.record_durably(
                "plan-delete", plan_id=plan.plan_id, sha256=plan.sha256, name=plan.name, was=plan.status.value, by=by
            )
            self._remove(plan.sha256, is_default=plan.type is PlanType.DEFAULT)
        return plan

    def record_verdict(self, sha256: str, verdict: Verdict) -> Decision | None:
        """Keep what the check of a plan's code found.

        Returns a decision for the outbox when the code does not parse and the researchers have not heard so, else None.
        """
        with self._database.transaction():
            plan = self.find(sha256)
            if plan is None:
                return None
            self._settle_if_possible()
            moment = utc_now()
            self._database.execute(
                "UPDATE plans SET checked = 1, minified_sha256 = ?, problem = ?, modified = ? WHERE sha256 = ?",
                (verdict.minified_sha256, verdict.problem, timestamp(moment), sha256),
            )
            if verdict.parses or verdict.problem == plan.problem:
                return None
            return Decision(plan=self.get(plan.plan_id), researchers=self.requesters(plan.plan_id), time=moment)

    def redo(self, line: Mapping[str, Any]) -> None:
        """Do again what a line of the audit says; for a register that was restored from an earlier copy.

        Raises StorageError when the bytes of a plan that is not here are missing or altered.
        """
        sha256, event = line["sha256"], line["event"]
        plan = self.find(sha256)
        if event == "plan-delete":
            # What no line named before was taken in from the folder of default plans.
            self._remove(sha256, is_default=plan is None or plan.type is PlanType.DEFAULT)
            return
        if plan is None:
            self._insert(
                self.store.read(sha256),
                line["name"],
                line.get("description", ""),
                type_=PlanType(line.get("type", "requested")),
                researcher_id=line.get("researcher"),
                plan_id=line["plan_id"],
            )
        if event == "approval-requested":
            self._database.execute(
                "INSERT OR IGNORE INTO requesters (plan_id, researcher_id, requested) "
                "SELECT plan_id, ?, ? FROM plans WHERE sha256 = ?",
                (line["researcher"], line["time"], sha256),
            )
            return
        decided = None if line["status"] == PlanStatus.PENDING.value else line["time"]
        self._database.execute(
            "UPDATE plans SET status = ?1, note = ?2, modified = ?3, last_action = ?3, decided = ?4 WHERE sha256 = ?5",
            (line["status"], line["note"], line["time"], decided, sha256),
        )

    def withdraw_all(self) -> list[str]:
        """Make every approved plan pending again; returns their digests."""
        approved = [plan.sha256 for plan in self.all(status=PlanStatus.APPROVED)]
        self._database.execute("UPDATE plans SET status = 'pending', decided = NULL WHERE status = 'approved'")
        return approved

    def settle(self) -> None:
        """Have every plan's file safe on the disk and no file of a deleted plan there.

        Drops the copies that were committed with their records. Runs by itself at the start, when a plan is approved or
        deleted, and when its code has been checked. Raises StorageError.
        """
        for row in self._database.rows("SELECT sha256, source FROM unsettled"):
            self.store.write(row["source"])
            self._database.execute("DELETE FROM unsettled WHERE sha256 = ?", (row["sha256"],))
        for row in self._database.rows("SELECT sha256 FROM leavings"):
            if self.find(row["sha256"]) is None:
                self.store.remove(row["sha256"])
            self._database.execute("DELETE FROM leavings WHERE sha256 = ?", (row["sha256"],))

    def _remove(self, sha256: str, *, is_default: bool) -> None:
        self._database.execute("DELETE FROM plans WHERE sha256 = ?", (sha256,))
        if is_default:
            self._database.execute("INSERT OR IGNORE INTO removed_defaults (sha256) VALUES (?)", (sha256,))
        self._database.execute("INSERT OR IGNORE INTO leavings (sha256) VALUES (?)", (sha256,))
        self._database.after_commit(self._settle_if_possible)

    def _insert(
        self,
        source: bytes,
        name: str,
        description: str,
        *,
        type_: PlanType,
        status: PlanStatus = PlanStatus.PENDING,
        researcher_id: str | None = None,
        by: str = "",
        plan_id: str | None = None,
    ) -> PlanRecord:
        now = timestamp(utc_now())
        approved = status is PlanStatus.APPROVED
        digest = hashlib.sha256(source).hexdigest()
        plan_id = plan_id or f"training_plan_{uuid.uuid4()}"
        self._database.execute(
            "INSERT INTO plans (plan_id, name, description, sha256, size_bytes, type, status, researcher_id, "
            "created, modified, registered, last_action, decided) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                plan_id, name, description, digest, len(source), type_.value, status.value, researcher_id,
                now, now, None if type_ is PlanType.REQUESTED else now, now, now if approved else None,
            ),
        )  # fmt: skip
        self._database.execute("INSERT INTO unsettled (sha256, source) VALUES (?, ?)", (digest, source))
        self._database.after_commit(lambda: self._write_file(source))
        plan = self.get(plan_id)
        if approved:
            self._write_down(plan, status, note="", by=by)
        return plan

    def _write_down(self, plan: PlanRecord, status: PlanStatus, *, note: str, by: str) -> None:
        self._audit.record_durably(
            "plan-decision",
            plan_id=plan.plan_id,
            sha256=plan.sha256,
            name=plan.name,
            type=plan.type.value,
            was=plan.status.value,
            status=status.value,
            note=note,
            by=by,
        )

    def _refuse_flood(self, researcher_id: str) -> None:
        counted = self._database.rows(
            "SELECT count(*) AS pending FROM plans WHERE researcher_id = ? AND status = 'pending'", (researcher_id,)
        )
        if counted[0]["pending"] >= MAX_PENDING_PER_RESEARCHER:
            raise ConflictError(
                f"researcher {researcher_id} has {counted[0]['pending']} undecided plans here, "
                "the most that this node keeps: wait for its owner to decide"
            )

    def _write_file(self, source: bytes) -> None:
        try:
            self.store.write(source, durably=False)
        except StorageError as error:
            logger.warning("the file of a plan will be written when that is possible: %s", error)

    def _settle_if_possible(self) -> None:
        try:
            self.settle()
        except StorageError as error:
            logger.warning("the files of plans are put in order when that is possible: %s", error)
