"""What the node says of its own accord and keeps until the researcher has it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError
from fedmon.common.wire.messages import Result
from fedmon.node.registers.database import Database, timestamp

DEFAULT_LIFETIME = datetime.timedelta(days=30)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Result).decode


class Outbox:
    """Decisions and outcomes that no researcher has acknowledged yet, in their order; of its database's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, result: Result, *, lifetime: datetime.timedelta = DEFAULT_LIFETIME) -> None:
        """Keep a result until it is acknowledged or ``lifetime`` has passed.

        Inside a transaction it is committed with it. Raises ConflictError when its id was added before.
        """
        changed = self._database.execute(
            "INSERT OR IGNORE INTO outbox (researcher_id, message_id, message, expires) VALUES (?, ?, ?, ?)",
            (result.researcher_id, result.id, _encode(result).decode(), timestamp(utc_now() + lifetime)),
        )
        if not changed:
            raise ConflictError(f"result {result.id!r} for researcher {result.researcher_id} is there already")

    def unacked(self, researcher_id: str, *, limit: int = 1000) -> list[Result]:
        """Return what this researcher has not acknowledged, oldest first, at most ``limit`` results."""
        found = self._database.rows(
            "SELECT message FROM outbox WHERE researcher_id = ? AND expires >= ? ORDER BY position LIMIT ?",
            (researcher_id, timestamp(utc_now()), limit),
        )
        return [_decode(row["message"]) for row in found]

    def waiting(self) -> dict[str, int]:
        """Return how many results wait for each researcher."""
        found = self._database.rows(
            "SELECT researcher_id, count(*) AS waiting FROM outbox WHERE expires >= ? GROUP BY researcher_id",
            (timestamp(utc_now()),),
        )
        return {row["researcher_id"]: row["waiting"] for row in found}

    def ack(self, researcher_id: str, ids: Sequence[str]) -> int:
        """Drop results that are safe with this researcher; ids of others or unknown ids change nothing.

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
        """Drop what nobody fetched in its lifetime; returns how many."""
        return self._database.execute("DELETE FROM outbox WHERE expires < ?", (timestamp(now or utc_now()),))
