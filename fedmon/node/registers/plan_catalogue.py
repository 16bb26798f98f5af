"""Finding training plans in a node's register."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from fedmon.common.wire.messages import PlanStatus
from fedmon.node.registers.database import Database
from fedmon.node.registers.plan_records import PlanRecord, PlanType

logger = logging.getLogger(__name__)

SORT_COLUMNS = (
    "name", "type", "status", "researcher_id", "size_bytes", "sha256", "plan_id", "description", "note", "problem",
    "minified_sha256", "created", "modified", "registered", "last_action", "decided",
)  # fmt: skip

_SELECT = """SELECT p.*, (
    SELECT o.plan_id FROM plans o WHERE o.minified_sha256 = p.minified_sha256 AND o.plan_id != p.plan_id
    ORDER BY o.status != 'approved', o.created, o.plan_id LIMIT 1
) AS same_code_as FROM plans p"""
_SEARCHED = ("name", "description", "note", "plan_id", "sha256", "researcher_id", "problem")


class PlanCatalogue:
    """The reading side of the register of training plans; belongs to the thread of its database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, sha256: str) -> PlanRecord | None:
        """Return the plan with exactly these bytes, or None."""
        found = self._database.rows(f"{_SELECT} WHERE p.sha256 = ?", (sha256,))
        return _record(found[0]) if found else None

    def get(self, reference: str) -> PlanRecord:
        """Return the plan that an id, a digest, the first 6 or more digits of a digest, or a name stands for.

        Raises NotFoundError, or ConflictError when it stands for several.
        """
        found = self._database.rows(f"{_SELECT} WHERE p.plan_id = ?1 OR p.sha256 = ?1", (reference,))
        if not found:
            found = self._database.rows(f"{_SELECT} WHERE p.name = ? ORDER BY p.created", (reference,))
        if not found and len(reference) >= 6 and reference.isalnum():
            found = self._database.rows(f"{_SELECT} WHERE p.sha256 GLOB ? || '*'", (reference,))
        if not found:
            raise NotFoundError(f"no training plan {reference!r} here; see: fedmon node plan list")
        if len(found) > 1:
            ids = ", ".join(row["plan_id"] for row in found)
            raise ConflictError(f"{reference!r} stands for {len(found)} training plans, name one by its id: {ids}")
        return _record(found[0])

    def all(
        self,
        *,
        status: PlanStatus | None = None,
        plan_type: PlanType | None = None,
        name: str | None = None,
        search: str | None = None,
        sort: str = "created",
        descending: bool = False,
    ) -> list[PlanRecord]:
        """Return the plans that match every filter; ``search`` looks for a text in any column, in any case.

        Raises InvalidInputError when ``sort`` is not one of SORT_COLUMNS.
        """
        if sort not in SORT_COLUMNS:
            raise InvalidInputError(f"plans cannot be sorted by {sort!r}; use one of {', '.join(SORT_COLUMNS)}")
        conditions, values = ["1"], []
        for column, wanted in (("status", status), ("type", plan_type)):
            if wanted is not None:
                conditions.append(f"p.{column} = ?")
                values.append(wanted.value)
        if name is not None:
            conditions.append("p.name = ?")
            values.append(name)
        order = f"p.{sort} {'DESC' if descending else 'ASC'} NULLS LAST, p.created, p.plan_id"
        rows = self._database.rows(f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY {order}", values)
        if search:
            lowered = search.casefold()
            rows = [row for row in rows if any(lowered in (row[column] or "").casefold() for column in _SEARCHED)]
        return [record for record in map(_readable, rows) if record is not None]

    def last_approved(self, name: str, *, other_than: str) -> PlanRecord | None:
        """Return the plan of this name that was approved last, leaving out the one with digest ``other_than``."""
        found = self._database.rows(
            f"{_SELECT} WHERE p.name = ? AND p.status = 'approved' AND p.sha256 != ? "
            "ORDER BY p.decided DESC, p.created DESC LIMIT 1",
            (name, other_than),
        )
        return _record(found[0]) if found else None

    def requesters(self, plan_id: str) -> tuple[str, ...]:
        """Return the researchers that asked for these bytes, in the order they did."""
        rows = self._database.rows(
            "SELECT researcher_id FROM requesters WHERE plan_id = ? ORDER BY requested, rowid", (plan_id,)
        )
        return tuple(row["researcher_id"] for row in rows)

    def unchecked(self) -> tuple[str, ...]:
        """Return the digests of the plans that still need a verdict, oldest first."""
        rows = self._database.rows("SELECT sha256 FROM plans WHERE NOT checked ORDER BY created, plan_id")
        return tuple(row["sha256"] for row in rows)


def _record(row: dict[str, Any]) -> PlanRecord:
    try:
        return msgspec.convert({**row, "checked": bool(row["checked"])}, PlanRecord)
    except msgspec.ValidationError as error:
        raise StorageError(f"the record of training plan {row['plan_id']} is damaged: {error}") from error


def _readable(row: dict[str, Any]) -> PlanRecord | None:
    try:
        return _record(row)
    except StorageError as error:
        logger.warning("left out of a list: %s", error)
        return None
