"""The register of jobs: their requests, their states and their ends."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from fedmon.common.clock import timestamp, utc_now
from fedmon.common.errors import StorageError
from fedmon.common.wire.runs import JobReport, JobState, Parcel
from fedmon.node.registers.database import Database

WITHDRAWN = "the owner of the node withdrew the approval of this plan"

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class ReleaseDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The owner's decision about a held result."""

    released: bool
    by: str
    note: str = ""

    @property
    def reason(self) -> str:
        """The reason that the researcher gets."""
        said = "released by the owner of the node" if self.released else "the owner of the node withholds the result"
        return f"{said}: {self.note}" if self.note else said


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job as its node knows it; ``content`` is a digest of the request.

    ``read_bytes`` of its events were passed on. ``result`` lacks its bytes: they are in the job's folder or behind its
    URL. ``inputs_bytes`` came with it, ``rows`` are those of its dataset, ``numbers`` those in its result.
    ``decision`` is about a result that was held.
    """

    researcher_id: str
    content: str
    job: JobReport
    read_bytes: int = 0
    result: Parcel | None = None
    inputs_bytes: int = 0
    rows: int | None = None
    numbers: int = 0
    decision: ReleaseDecision | None = None


class JobRegister:
    """Jobs by their id; belongs to the thread of its database, and joins its transactions.

    A job that was noted is returned so from then on, and written down by the next `save`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: dict[str, JobRecord] = {}

    def note(self, record: JobRecord) -> None:
        """Take a kept job as it stands now, in memory."""
        self._noted[record.job.job_id] = record

    def save(self) -> None:
        """Keep the noted jobs. Raises StorageError."""
        if self._noted:
            with self._database.transaction():
                for record in self._noted.values():
                    self.keep(record)

    def keep(self, record: JobRecord, *, kept_from: datetime.datetime | None = None) -> None:
        """Keep the record of a job, new or as it stands; its files are kept from its end or a later moment on.

        Inside a transaction.
        """
        job, ended = record.job, kept_from or record.job.ended
        self._database.execute(
            "INSERT INTO runs (job_id, researcher_id, content, sha256, state, is_over, job, created, ended) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job_id) DO UPDATE "
            "SET state = excluded.state, is_over = excluded.is_over, job = excluded.job, ended = excluded.ended",
            (
                job.job_id, record.researcher_id, record.content, job.sha256, job.state.value, job.state.is_final,
                _encode(record).decode(), timestamp(job.created), ended and timestamp(ended),
            ),
        )  # fmt: skip
        self._database.after_commit(lambda: self._noted.pop(job.job_id, None))

    def find(self, job_id: str) -> JobRecord | None:
        """Return a job, or None. Raises StorageError if its record is damaged."""
        found = self._database.rows("SELECT job_id, job FROM runs WHERE job_id = ?", (job_id,))
        return self._record(found[0]) if found else None

    def going_on(self) -> list[JobRecord]:
        """Return the jobs that are not over, oldest first, without those whose record is damaged."""
        return self._readable(self._database.rows("SELECT job_id, job FROM runs WHERE is_over = 0 ORDER BY position"))

    def held(self) -> list[JobRecord]:
        """Return the jobs whose result waits for the owner, oldest first."""
        return [each for each in self.going_on() if each.job.state is JobState.HELD]

    def decide(self, record: JobRecord, decision: ReleaseDecision) -> None:
        """Write down the owner's decision about a held result; the daemon carries it out."""
        result = record.result
        with self._database.transaction():
            self._database.record(
                "result-release" if decision.released else "result-withhold",
                job=record.job.job_id,
                researcher=record.researcher_id,
                sha256=record.job.sha256,
                result_sha256=None if result is None else result.sha256,
                result_bytes=None if result is None else result.size_bytes,
                numbers=record.numbers,
                note=decision.note,
                by=decision.by,
            )
            self.keep(msgspec.structs.replace(record, decision=decision))

    def of(self, researcher_id: str | None, *, offset: int, limit: int) -> list[JobRecord]:
        """Return jobs of a researcher, or of all with None, newest first."""
        rows = self._database.rows(
            "SELECT job_id, job FROM runs WHERE researcher_id = ifnull(?, researcher_id) "
            "ORDER BY position DESC LIMIT ? OFFSET ?",
            (researcher_id, limit, offset),
        )
        return self._readable(rows)

    def count(self, researcher_id: str) -> int:
        """Return how many jobs of a researcher there are."""
        found = self._database.rows("SELECT count(*) AS n FROM runs WHERE researcher_id = ?", (researcher_id,))
        return int(found[0]["n"])

    def ids(self) -> set[str]:
        """Return the ids of all jobs."""
        return {row["job_id"] for row in self._database.rows("SELECT job_id FROM runs")}

    def ended_before(self, moment: datetime.datetime) -> set[str]:
        """Return the ids of jobs that were over before a moment."""
        found = self._database.rows("SELECT job_id FROM runs WHERE is_over = 1 AND ended < ?", (timestamp(moment),))
        return {row["job_id"] for row in found}

    def forget(self, before: datetime.datetime) -> None:
        """Remove jobs that were over before a moment, with their ids."""
        self._database.execute("DELETE FROM runs WHERE is_over = 1 AND ended < ?", (timestamp(before),))

    def _readable(self, rows: Sequence[dict[str, Any]]) -> list[JobRecord]:
        """Return the records of rows; a damaged one is left out and logged."""
        records = []
        for row in rows:
            try:
                records.append(self._record(row))
            except StorageError as error:
                logger.warning("left out of a list: %s", error)
        return records

    def _record(self, row: dict[str, Any]) -> JobRecord:
        try:
            return self._noted.get(row["job_id"]) or msgspec.json.decode(row["job"], type=JobRecord)
        except msgspec.MsgspecError as error:
            raise StorageError(f"the record of job {row['job_id']} is damaged: {error}") from error


class ReleaseLedger:
    """Counts how much left of jobs, by month, researcher and dataset; joins the transactions of its database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, record: JobRecord, released: Parcel | None, *, scalars: int) -> None:
        """Count a result that leaves, or None, and the reports that left."""
        if released is None and not scalars:
            return
        results, size_bytes, numbers = (0, 0, 0) if released is None else (1, released.size_bytes, record.numbers)
        self._database.execute(
            "INSERT INTO released VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET results = results + "
            "excluded.results, size_bytes = size_bytes + excluded.size_bytes, numbers = numbers + excluded.numbers, "
            "scalars = scalars + excluded.scalars",
            (
                f"{utc_now():%Y-%m}", record.researcher_id, record.job.dataset_id or "", results, size_bytes, numbers,
                scalars,
            ),
        )  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts, the newest month first."""
        return self._database.rows("SELECT * FROM released ORDER BY month DESC, researcher_id, dataset_id")
