"""What the node says of its own accord and keeps until the researcher has it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError
from fedmon.common.wire.messages import PlanDecision
from fedmon.node.database import Database, timestamp

DEFAULT_LIFETIME = datetime.timedelta(days=30)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PlanDecision).decode


class Outbox:
    """Decisions that no researcher has acknowledged yet, in the order they were made; of its database's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, decision: PlanDecision, *, lifetime: datetime.timedelta = DEFAULT_LIFETIME) -> None:
        """Keep a decision until it is acknowledged or ``lifetime`` has passed.

        Inside a transaction it is committed with it. Raises ConflictError when its id was added before.
        """
        changed = self._database.execute(
            "INSERT OR IGNORE INTO outbox (researcher_id, message_id, message, expires) VALUES (?, ?, ?, ?)",
            (decision.researcher_id, decision.id, _encode(decision).decode(), timestamp(utc_now() + lifetime)),
        )
        if not changed:
            raise ConflictError(f"decision {decision.id!r} for researcher {decision.researcher_id} is there already")

    def unacked(self, researcher_id: str, *, limit: int = 1000) -> list[PlanDecision]:
        """Return what this researcher has not acknowledged, oldest first, at most ``limit`` decisions."""
        found = self._database.rows(
            "SELECT message FROM outbox WHERE researcher_id = ? AND expires >= ? ORDER BY position LIMIT ?",
            (researcher_id, timestamp(utc_now()), limit),
        )
        return [_decode(row["message"]) for row in found]

    def waiting(self) -> dict[str, int]:
        """Return how many decisions wait for each researcher."""
        found = self._database.rows(
            "SELECT researcher_id, count(*) AS waiting FROM outbox WHERE expires >= ? GROUP BY researcher_id",
            (timestamp(utc_now()),),
        )
        return {row["researcher_id"]: row["waiting"] for row in found}

    def ack(self, researcher_id: str, ids: Sequence[str]) -> int:
        """Drop decisions that are safe with this researcher; ids of others or unknown ids change nothing.

        Returns how many were dropped.
        """
        with self._database.transaction():
            return sum(
                self._database.execute(
                    "DELETE FROM outbox WHERE researcher_id = ? AND message_id = ?", (researcher_id, message_id)
                )
                for message_id in ids
            )

    def expire(self, *, now: datetime.datetime | None = None) -> int:
        """Drop what nobody fetched in its lifetime; returns how many decisions."""
        return self._database.execute("DELETE FROM outbox WHERE expires < ?", (timestamp(now or utc_now()),))
