"""The register of the datasets that a node offers; their paths never leave it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from fedmon.node.registers.database import Database, timestamp
from fedmon.node.registers.dataset_records import DatasetRecord, checked_record
from fedmon.node.registers.dataset_source import Measured, measure

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_JSON_COLUMNS = ("tags", "shape", "dtypes", "dataset_parameters")


class DatasetRegister:
    """Datasets by name and id; belongs to the thread of its database.

    Reading a large table takes seconds: call `dataset_source.measure` elsewhere and hand the result to `add` or `edit`
    where the calling thread has other work.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._read: tuple[int, list[DatasetRecord]] | None = None

    def add(
        self,
        path: Path | str,
        *,
        name: str,
        data_type: str,
        tags: Sequence[str],
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        measured: Measured | None = None,
    ) -> DatasetRecord:
        """Offer what lies at ``path``; a table is read for its shape and types.

        Raises InvalidInputError when a field or the file cannot be used, ConflictError when the name is taken or the
        tags are the same as, part of, or more than those of another dataset: a search could not tell them apart.
        """
        now = utc_now()
        location = _resolved(path)
        record = checked_record(
            DatasetRecord(
                dataset_id=f"dataset_{uuid.uuid4()}",
                name=name,
                data_type=data_type,
                tags=tuple(tags),
                description=description,
                path=str(location),
                dataset_parameters=dict(parameters) if parameters is not None else None,
                created=now,
                modified=now,
            )
        )
        self._refuse_conflict(record)
        record = _with_measured(record, measured or measure(location, record.data_type))
        with self._database.transaction():
            self._refuse_conflict(record)
            self._insert(record)
        return record

    def edit(
        self,
        name_or_id: str,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        description: str | None = None,
        path: Path | str | None = None,
        data_type: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        measured: Measured | None = None,
    ) -> DatasetRecord:
        """Change what is given and check all of it again; a changed path or type is read anew.

        Raises NotFoundError, and what `add` raises; nothing is changed then.
        """
        with self._database.transaction():
            old = self.get(name_or_id)
            location = Path(old.path) if path is None else _resolved(path)
            record = checked_record(
                msgspec.structs.replace(
                    old,
                    name=old.name if name is None else name,
                    data_type=old.data_type if data_type is None else data_type,
                    tags=old.tags if tags is None else tuple(tags),
                    description=old.description if description is None else description,
                    path=str(location),
                    dataset_parameters=old.dataset_parameters if parameters is None else dict(parameters),
                    modified=utc_now(),
                )
            )
            self._refuse_conflict(record)
            if path is not None or data_type is not None:
                record = _with_measured(record, measured or measure(location, record.data_type))
            columns = _columns(record)
            self._database.execute(
                f"UPDATE datasets SET {', '.join(f'{column} = ?' for column in columns)} WHERE dataset_id = ?",  # noqa: S608
                (*columns.values(), record.dataset_id),
            )
        return record

    def remove(self, name_or_id: str) -> DatasetRecord:
        """Offer a dataset no longer; its files are not touched. Raises NotFoundError."""
        with self._database.transaction():
            record = self.get(name_or_id)
            self._database.execute("DELETE FROM datasets WHERE dataset_id = ?", (record.dataset_id,))
        return record

    def redo(self, line: Mapping[str, Any]) -> None:
        """Do again what a line of the audit says; for a register that was restored from an earlier copy.

        Raises StorageError for a line that does not hold the whole record, as those of earlier releases.
        """
        if line["event"] != "dataset-remove" and "record" not in line:
            raise StorageError("the audit does not hold all of it: add it again")
        self._database.execute("DELETE FROM datasets WHERE dataset_id = ?", (line["dataset_id"],))
        if line["event"] != "dataset-remove":
            self._insert(msgspec.convert(line["record"], DatasetRecord))

    def all(self) -> list[DatasetRecord]:
        """Return every dataset, in the order of their names; reads them only after something has changed."""
        changes = self._database.changes
        if self._read is not None and changes == self._read[0]:
            return list(self._read[1])
        rows = self._database.rows("SELECT * FROM datasets ORDER BY name, dataset_id")
        records = [record for record in map(_readable, rows) if record is not None]
        self._read = None if changes is None else (changes, records)
        return list(records)

    def get(self, name_or_id: str) -> DatasetRecord:
        """Return one dataset. Raises NotFoundError."""
        rows = self._database.rows("SELECT * FROM datasets WHERE dataset_id = ?1 OR name = ?1", (name_or_id,))
        if not rows:
            raise NotFoundError(f"no dataset {name_or_id!r} here; see: fedmon node dataset list")
        return _record(rows[0])

    def search(self, tags: Collection[str]) -> list[DatasetRecord]:
        """Return the datasets that carry every one of ``tags``; every dataset when there are none."""
        wanted = set(tags)
        return [record for record in self.all() if wanted <= set(record.tags)]

    def _insert(self, record: DatasetRecord) -> None:
        columns = _columns(record)
        self._database.execute(
            f"INSERT INTO datasets ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",  # noqa: S608
            tuple(columns.values()),
        )

    def _refuse_conflict(self, record: DatasetRecord) -> None:
        tags = set(record.tags)
        for other in self.all():
            if other.dataset_id == record.dataset_id:
                continue
            if other.name == record.name:
                raise ConflictError(f"dataset {other.dataset_id} is called {other.name!r} already: choose another name")
            if tags <= set(other.tags) or tags >= set(other.tags):
                raise ConflictError(
                    f"the tags {', '.join(sorted(tags))} are the same as, part of, or more than those of dataset "
                    f"{other.name!r} ({', '.join(sorted(other.tags))}): give each dataset a tag that the other lacks"
                )


def _resolved(path: Path | str) -> Path:
    """Return where a path leads now: a link that is put into it later must not lead a plan elsewhere."""
    try:
        location = Path(path).expanduser().resolve()
        str(location).encode()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInputError(f"the path {str(path)!r} cannot be used: {error}") from error
    return location


def _with_measured(record: DatasetRecord, measured: Measured) -> DatasetRecord:
    shape = None if measured.shape is None else list(measured.shape)
    return msgspec.structs.replace(record, shape=shape, dtypes=measured.dtypes)


def _columns(record: DatasetRecord) -> dict[str, object]:
    columns: dict[str, object] = msgspec.structs.asdict(record)
    for column in _JSON_COLUMNS:
        if columns[column] is not None:
            columns[column] = _encode(columns[column]).decode()
    for column in ("created", "modified"):
        columns[column] = timestamp(getattr(record, column))
    return columns


def _record(row: dict[str, Any]) -> DatasetRecord:
    try:
        decoded = {
            column: msgspec.json.decode(value) if column in _JSON_COLUMNS and value is not None else value
            for column, value in row.items()
        }
        return msgspec.convert(decoded, DatasetRecord)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StorageError(f"the record of dataset {row['dataset_id']} is damaged: {error}") from error


def _readable(row: dict[str, Any]) -> DatasetRecord | None:
    try:
        return _record(row)
    except StorageError as error:
        logger.warning("left out of a list: %s", error)
        return None
