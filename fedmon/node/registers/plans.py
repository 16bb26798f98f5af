"""The register of training plans: requests, the owner's decisions, and the exact bytes."""

from __future__ import annotations

import contextlib
import datetime
import enum
import hashlib
import logging
import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import timestamp, utc_now
from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.files import storage_errors, write_whole
from fedmon.common.ids import chosen, new_id
from fedmon.common.plan_source import MAX_PLAN_BYTES, read_plan
from fedmon.common.wire.grants import Grant
from fedmon.common.wire.messages import Approval, PlanDecision, PlanStatus
from fedmon.node.registers.database import Database, Row
from fedmon.node.registers.grants import GrantRegister
from fedmon.node.registers.plan_source import CodeCheck, checked_name

logger = logging.getLogger(__name__)

ID_PREFIX = "training_plan_"

_FILE = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.([0-9a-f]{16}|[0-9a-f]{12}\.part)")
_SELECT = """SELECT p.*, (
    SELECT o.plan_id FROM plans o WHERE o.minified_sha256 = p.minified_sha256 AND o.plan_id != p.plan_id
    ORDER BY o.status != 'approved', o.created, o.plan_id LIMIT 1
) AS same_code_as FROM plans p"""


class PlanType(enum.Enum):
    """How a plan came to this node."""

    REQUESTED = "requested"
    REGISTERED = "registered"
    DEFAULT = "default"


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One training plan; approval belongs to the bytes of ``sha256`` and to nothing else.

    ``checked`` tells whether a worker has read it; then ``minified_sha256`` is the digest of the code without layout
    and comments, or ``problem`` says why there is none. ``same_code_as`` is the id of another plan with the same
    minified digest: a hint for the reader, never a reason to approve. ``researcher_id`` asked first.
    """

    plan_id: str
    name: str
    description: str
    sha256: str
    size_bytes: int
    checked: bool
    minified_sha256: str | None
    same_code_as: str | None
    problem: str
    type: PlanType
    status: PlanStatus
    note: str
    researcher_id: str | None
    created: datetime.datetime
    modified: datetime.datetime
    registered: datetime.datetime | None
    last_action: datetime.datetime
    decided: datetime.datetime | None

    @property
    def hint(self) -> str:
        """Say which other plan holds the same code; empty when none does."""
        return f"same code as plan {self.same_code_as}, other layout" if self.same_code_as else ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as it stands after a decision or a finding, and the researchers that asked for it and must hear of it.

    ``grant`` is that of an approval; researchers whom it does not name hear nothing of it.
    """

    plan: PlanRecord
    researchers: tuple[str, ...]
    time: datetime.datetime
    grant: Grant | None = None

    def messages(self, *, node_id: str, boot: int) -> tuple[PlanDecision, ...]:
        """Return one message for the outbox to each researcher that asked for these bytes."""
        return tuple(
            PlanDecision(
                node_id=node_id,
                researcher_id=researcher_id,
                id=new_id(),
                boot=boot,
                plan_id=self.plan.plan_id,
                sha256=self.plan.sha256,
                name=self.plan.name,
                status=self.plan.status,
                note=self.plan.note if self.grant is None else self.grant.note,
                problem=self.plan.problem,
                decided=self.time,
                grant=self.grant,  # the delivery tells each the part for them
            )
            for researcher_id in self.researchers
        )


class PlanStore:
    """A folder of plan files; every method is safe from any thread.

    Names come from digests that we computed or checked, never from outside, so nothing can be written elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder when it is missing, readable by its owner only. Raises StorageError."""
        self.folder = folder.absolute()
        with storage_errors(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, source: bytes) -> str:
        """Have bytes whole on the disk, safe from a power cut, and return their SHA-256. Raises StorageError."""
        sha256 = hashlib.sha256(source).hexdigest()
        with contextlib.suppress(StorageError):
            self.read(sha256)
            return sha256
        write_whole(self.folder / sha256, source, mode=0o600, folder_mode=0o700, durable=True)
        return sha256

    def read(self, sha256: str) -> bytes:
        """Return the bytes with this digest, computed again. Raises StorageError when they are missing or altered."""
        path = self.folder / sha256
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with storage_errors(path, "read the plan file"), os.fdopen(os.open(path, flags), "rb") as file:
            source = file.read()
        if hashlib.sha256(source).hexdigest() != sha256:
            raise StorageError(
                f"the plan file {path} no longer holds the bytes of its digest: "
                "delete the plan and let the researcher send it again"
            )
        return source

    def remove(self, sha256: str) -> None:
        """Remove the bytes with this digest; nothing happens when they are gone. Raises StorageError."""
        with storage_errors(self.folder / sha256):
            (self.folder / sha256).unlink(missing_ok=True)

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove the files of other plans, and half-written files of a crash. Raises StorageError."""
        with storage_errors(self.folder):
            for path in self.folder.iterdir():
                if _FILE.fullmatch(path.name) and path.name not in digests:
                    path.unlink(missing_ok=True)


class PlanRegister:
    """Training plans by their exact bytes; belongs to the thread of its database.

    Every change of a status is written to the audit, on the disk, before it is committed here: a decision without its
    line cannot happen, while a crash between the two leaves a line about a decision that did not take hold. Methods
    may run inside ``database.transaction()``, to commit together with effects and outbox.

    The file of a plan's bytes is on the disk before its record, and goes after it; a start removes leftovers of a
    crash.
    """

    def __init__(self, database: Database, folder: Path, *, max_plan_bytes: int = MAX_PLAN_BYTES) -> None:
        """Use ``folder`` for the bytes of plans. Raises StorageError."""
        self._database, self.max_plan_bytes = database, max_plan_bytes
        self.store = PlanStore(folder)
        self.grants = GrantRegister(database)
        if database.behind is None and database.restored is None:  # a restored register may lack plans
            self.store.keep_only({row["sha256"] for row in database.rows("SELECT sha256 FROM plans")})

    # --- finding plans -----------------------------------------------------------------------------------------------

    def find(self, sha256: str) -> PlanRecord | None:
        """Return the plan with exactly these bytes, or None."""
        found = self._database.rows(f"{_SELECT} WHERE p.sha256 = ?", (sha256,))
        return _record(found[0]) if found else None

    def get(self, reference: str) -> PlanRecord:
        """Return the one plan that a reference stands for: its id or digest, the beginning of one, or its name.

        Names come from researchers, so a name never goes before another plan's digest. Raises NotFoundError,
        ConflictError listing the candidates, and InvalidInputError for too short a beginning.
        """
        ids, named = dict[str, str](), list[str]()
        for row in self._database.rows("SELECT plan_id, sha256, name FROM plans ORDER BY created"):
            plan_id = row["plan_id"]
            ids |= {plan_id: plan_id, row["sha256"]: plan_id}
            named += [plan_id] if row["name"] == reference else []
        see = "fedmon node plan list"
        return self._by_id(chosen(reference, ids, prefix=ID_PREFIX, named=named, what="training plan", see=see))

    def _by_id(self, plan_id: str) -> PlanRecord:
        return _record(self._database.rows(f"{_SELECT} WHERE p.plan_id = ?", (plan_id,))[0])

    def all(self) -> list[PlanRecord]:
        """Return the plans, oldest first."""
        return list(map(_record, self._database.rows(f"{_SELECT} ORDER BY p.created, p.plan_id")))

    def last_approved(self, name: str, *, other_than: str) -> PlanRecord | None:
        """Return the plan of this name that was approved last, leaving out the one with digest ``other_than``."""
        found = self._database.rows(
            f"{_SELECT} WHERE p.name = ? AND p.status = 'approved' AND p.sha256 != ? "
            "ORDER BY p.decided DESC, p.created DESC LIMIT 1",
            (name, other_than),
        )
        return _record(found[0]) if found else None

    def status_for(self, plan: PlanRecord, researcher_id: str) -> PlanStatus:
        """Return where a plan stands for a researcher.

        An approved one is pending while they ask for another grant, and if they asked and no grant names them.
        """
        wishes = self.grants.wishes(plan.plan_id) if plan.status is PlanStatus.APPROVED else []
        asked = [wish.is_open for wish in wishes if wish.researcher_id == researcher_id]
        is_named = any(record.is_for(researcher_id) for record in self.grants.of(plan.sha256))
        return PlanStatus.PENDING if any(asked) or (asked and not is_named) else plan.status

    def note_for(self, plan: PlanRecord, researcher_id: str) -> str:
        """Return the owner's note to a researcher; that of an approval is for those whom its grant names."""
        notes = [each.grant.note for each in self.grants.of(plan.sha256) if each.is_for(researcher_id)]
        return plan.note if plan.status is not PlanStatus.APPROVED else ["", *notes][-1]

    def standing(self, plan: PlanRecord) -> list[Decision]:
        """Return the present state of a plan as decisions: one for each of its grants."""
        records = self.grants.of(plan.sha256) if plan.status is PlanStatus.APPROVED else []
        grants: list[Grant | None] = [each.grant for each in records]
        return [self._decision(plan, grant, plan.last_action) for grant in grants or [None]]

    def unchecked(self) -> tuple[str, ...]:
        """Return the digests of the plans that were not checked yet, oldest first."""
        rows = self._database.rows("SELECT sha256 FROM plans WHERE NOT checked ORDER BY created, plan_id")
        return tuple(row["sha256"] for row in rows)

    # --- taking plans in ---------------------------------------------------------------------------------------------

    def request(
        self,
        approval: Approval,
        source: bytes,
        *,
        datasets: Sequence[str] | None = None,
        seen: Collection[str] | None = None,
    ) -> PlanRecord:
        """Take in the bytes that a researcher wants to have approved, for these datasets; returns their record.

        Without ``datasets`` it is for all that the researcher has ``seen``. An approved plan comes back as pending,
        without a note, if this request waits. Raises InvalidInputError if digest, size or name are wrong, StorageError.
        """
        digest = hashlib.sha256(source).hexdigest()
        if digest != approval.sha256:
            raise InvalidInputError(f"the plan's bytes have SHA-256 {digest} and not {approval.sha256}: send it again")
        if len(source) != approval.size_bytes:
            raise InvalidInputError(f"the plan has {len(source)} bytes and not {approval.size_bytes}: send it again")
        name = checked_name(source, approval.name, approval.description, max_bytes=self.max_plan_bytes)
        with self._database.transaction():
            plan = self.find(digest)
            if plan is None:
                plan = self._insert(
                    source, name, approval.description, type_=PlanType.REQUESTED, researcher_id=approval.researcher_id
                )
            else:
                self.store.write(source)  # mends a file that was lost or altered
            who, purpose, now = approval.researcher_id, approval.purpose, timestamp(utc_now())
            waits = self.grants.ask(plan.plan_id, digest, who, now, datasets=datasets, purpose=purpose, seen=seen)
        if waits and plan.status is PlanStatus.APPROVED:
            return msgspec.structs.replace(plan, status=PlanStatus.PENDING, note="")
        return plan

    def register(
        self, source: bytes, *, name: str, description: str = "", by: str = "", grant: Grant | None = None
    ) -> PlanRecord:
        """Take in the owner's own plan; it is approved by that, without limits unless there is a ``grant``.

        Raises ConflictError when a plan with these bytes is here already: approve that one.
        """
        name = checked_name(source, name, description, max_bytes=self.max_plan_bytes)
        with self._database.transaction():
            known = self.find(hashlib.sha256(source).hexdigest())
            if known is not None:
                raise ConflictError(
                    f"these bytes are plan {known.plan_id} ({known.name!r}, {known.status.value}) already; "
                    f"approve it with: fedmon node plan approve {known.plan_id}"
                )
            plan = self._insert(source, name, description, type_=PlanType.REGISTERED)
            self._database.execute("DELETE FROM removed_defaults WHERE sha256 = ?", (plan.sha256,))
            return self.decide(plan.plan_id, PlanStatus.APPROVED, by=by, grant=grant).plan

    def load_defaults(self, folder: Path) -> tuple[PlanRecord, ...]:
        """Take in every ``*.py`` of a folder as a default plan, pending until the owner approves it.

        Returns those that are new; a file that cannot be used is reported in the log. A changed file is another plan.
        One that was deleted stays away until its file changes, or until it is asked for or registered. Raises
        InvalidInputError when there is no such folder.
        """
        if not folder.is_dir():
            raise InvalidInputError(f"folder {folder} of default plans not found: make it, or change the setting")
        new = []
        with self._database.transaction():
            removed = {row["sha256"] for row in self._database.rows("SELECT sha256 FROM removed_defaults")}
            for path in sorted(folder.glob("*.py")):
                try:
                    source = read_plan(path, self.max_plan_bytes)
                    name = checked_name(source, path.stem, "", max_bytes=self.max_plan_bytes)
                except InvalidInputError as error:
                    logger.warning("default plan %s was left out: %s", path, error)
                    continue
                digest = hashlib.sha256(source).hexdigest()
                if digest not in removed and self.find(digest) is None:
                    new.append(self._insert(source, name, "", type_=PlanType.DEFAULT))
        return tuple(new)

    # --- deciding about plans ----------------------------------------------------------------------------------------

    def decide(
        self, reference: str, status: PlanStatus, *, note: str = "", by: str = "", grant: Grant | None = None
    ) -> Decision:
        """Approve or reject a plan, or make it pending; put the returned decision's messages into the outbox.

        Do both in one transaction. An approval adds ``grant``, without limits if it is None; any other decision ends
        all grants. Deciding the same once more changes nothing and sends nothing. Raises the errors of `get`, and
        StorageError when the bytes are damaged or audit or register cannot be written.
        """
        with self._database.transaction():
            plan = self.get(reference)
            if (plan.status, plan.note) == (status, note) and not self._is_new(plan, grant):
                if status is PlanStatus.REJECTED:  # it may have been asked for again
                    self.grants.end(timestamp(utc_now()), plan.sha256)
                return Decision(plan=plan, researchers=(), time=plan.last_action)
            if status is PlanStatus.APPROVED:
                self.store.read(plan.sha256)
                grant = grant or Grant(grant_id=new_id(), sha256=plan.sha256, note=note)
            moment = utc_now()
            self._database.record(
                "plan-decision",
                plan_id=plan.plan_id,
                sha256=plan.sha256,
                name=plan.name,
                type=plan.type.value,
                was=plan.status.value,
                status=status.value,
                note=note,
                by=by,
                **({} if grant is None else {"grant": msgspec.to_builtins(grant)}),
            )
            self._set_status(plan.sha256, status.value, note, timestamp(moment), grant)
            return self._decision(self._by_id(plan.plan_id), grant, moment)

    def delete(self, reference: str, *, by: str = "") -> PlanRecord:
        """Forget a plan and its approval; the researchers' status requests then find nothing.

        A default plan does not come back from its folder until its file changes.
        """
        with self._database.transaction():
            plan = self.get(reference)
            facts = {"plan_id": plan.plan_id, "sha256": plan.sha256, "name": plan.name, "was": plan.status.value}
            self._database.record("plan-delete", **facts, by=by)
            self._remove(plan.sha256, is_default=plan.type is PlanType.DEFAULT)
        return plan

    def record_check(self, sha256: str, check: CodeCheck) -> Decision | None:
        """Keep the findings of a plan's check; of one that is not final only the problem.

        Returns a decision for the outbox when the code does not parse and the researchers have not heard so, else None.
        """
        with self._database.transaction():
            plan = self.find(sha256)
            if plan is None:
                return None
            moment = utc_now()
            self._database.execute(
                "UPDATE plans SET checked = ?, minified_sha256 = ?, problem = ?, modified = ? WHERE sha256 = ?",
                (check.is_final, check.minified_sha256, check.problem, timestamp(moment), sha256),
            )
            if check.is_final:
                self.grants.declare(sha256, check.declared)
            if check.parses or check.problem == plan.problem:
                return None
            return self._decision(self._by_id(plan.plan_id), None, moment)

    # --- a register that was restored from an earlier copy -----------------------------------------------------------

    def redo(self, line: Mapping[str, Any]) -> None:
        """Redo a line of the audit.

        Raises StorageError when the bytes of a plan that is not here are missing or altered.
        """
        sha256, event = line["sha256"], line["event"]
        plan = self.find(sha256)
        if event == "plan-delete":
            # What no line named before was taken in from the folder of default plans.
            self._remove(sha256, is_default=plan is None or plan.type is PlanType.DEFAULT)
            return
        if plan is None:
            plan = self._insert(
                self.store.read(sha256),
                line["name"],
                line.get("description", ""),
                type_=PlanType(line.get("type", "requested")),
                researcher_id=line.get("researcher"),
                plan_id=line["plan_id"],
                time=line["time"],
            )
        if event == "approval-requested":
            # What the researcher saw then is not known: at most all datasets.
            seen = [row["dataset_id"] for row in self._database.rows("SELECT dataset_id FROM datasets")]
            who, datasets, purpose = line["researcher"], line.get("datasets"), line.get("purpose", "")
            self.grants.ask(plan.plan_id, sha256, who, line["time"], datasets=datasets, purpose=purpose, seen=seen)
        else:
            # Earlier releases approved without terms.
            grant_id = f"grant_{sha256[:32]}_{line['time']}"
            before = {"grant_id": grant_id, "sha256": sha256, "release": "auto", "note": line["note"]}
            is_approved = line["status"] == PlanStatus.APPROVED.value
            if is_approved:
                self.store.read(sha256)
            grant = msgspec.convert(line.get("grant") or before, Grant) if is_approved else None
            self._set_status(sha256, line["status"], line["note"], line["time"], grant)

    def withdraw_all(self) -> list[str]:
        """Make every approved plan pending again; returns their digests."""
        approved = [plan.sha256 for plan in self.all() if plan.status is PlanStatus.APPROVED]
        self._database.execute("UPDATE plans SET status = 'pending', decided = NULL WHERE status = 'approved'")
        self.grants.end(timestamp(utc_now()))
        return approved

    # --- rows and files ----------------------------------------------------------------------------------------------

    def _insert(
        self,
        source: bytes,
        name: str,
        description: str,
        *,
        type_: PlanType,
        researcher_id: str | None = None,
        plan_id: str | None = None,
        time: str | None = None,
    ) -> PlanRecord:
        now, digest = time or timestamp(utc_now()), self.store.write(source)
        plan_id = plan_id or f"{ID_PREFIX}{uuid.uuid4()}"
        self._database.execute(
            "INSERT INTO plans (plan_id, name, description, sha256, size_bytes, type, status, researcher_id, created, "
            "modified, registered, last_action) VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?, ?)",
            (
                plan_id, name, description, digest, len(source), type_.value, researcher_id,
                now, now, None if type_ is PlanType.REQUESTED else now, now,
            ),
        )  # fmt: skip
        return self._by_id(plan_id)

    def _set_status(self, sha256: str, status: str, note: str, time: str, grant: Grant | None) -> None:
        decided = None if status == PlanStatus.PENDING.value else time
        self._database.execute(
            "UPDATE plans SET status = ?, note = ?, modified = ?, last_action = ?, decided = ? WHERE sha256 = ?",
            (status, note, time, time, decided, sha256),
        )
        if grant is None:
            self.grants.end(time, sha256)
        else:
            self.grants.add(grant, time)

    def _is_new(self, plan: PlanRecord, grant: Grant | None) -> bool:
        """Tell whether a grant gives anything that no grant of this plan gives in full, or answers an open request."""
        if grant is None:
            return False
        full = [record.grant for record in self.grants.of(plan.sha256) if not (record.used and record.grant.runs)]
        asking = [wish.researcher_id for wish in self.grants.wishes(plan.plan_id) if wish.is_open]
        return any(grant.researchers is None or each in grant.researchers for each in asking) or all(
            msgspec.structs.replace(grant, grant_id=each.grant_id) != each for each in full
        )

    def _decision(self, plan: PlanRecord, grant: Grant | None, time: datetime.datetime) -> Decision:
        asked = self.grants.requesters(plan.plan_id)
        if grant is not None and grant.researchers is not None:
            asked = tuple(each for each in asked if each in grant.researchers)
        return Decision(plan=plan, researchers=asked, time=time, grant=grant)

    def _remove(self, sha256: str, *, is_default: bool) -> None:
        self._database.execute("DELETE FROM plans WHERE sha256 = ?", (sha256,))
        if is_default:
            self._database.execute("INSERT OR IGNORE INTO removed_defaults (sha256) VALUES (?)", (sha256,))
        self._database.after_commit(lambda: self._remove_file(sha256))

    def _remove_file(self, sha256: str) -> None:
        try:
            if self.find(sha256) is None:  # unless the same transaction took it in again
                self.store.remove(sha256)
        except StorageError as error:
            logger.warning("the file of a deleted plan is left for the next start: %s", error)


def _record(row: Row) -> PlanRecord:
    return msgspec.convert({**row, "checked": bool(row["checked"])}, PlanRecord)
