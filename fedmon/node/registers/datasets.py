"""The register of the datasets that a node offers; their paths never leave it."""

from __future__ import annotations

import datetime
import os
import re
import stat
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import timestamp, utc_now
from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.ids import chosen
from fedmon.common.wire import messages
from fedmon.node.registers.database import Database, Row
from fedmon.node.registers.dataset_source import FOLDERS, TABLES, DatasetShape
from fedmon.node.registers.plan_source import checked_line, visible_text

ID_PREFIX = "dataset_"
DATA_TYPES = ("csv", "tabular", "images", "medical-folder", "mednist", "default", "custom")
MAX_NAME_LENGTH = 256
MAX_TAGS = 64
MAX_TAG_LENGTH = 256
MAX_DESCRIPTION_LENGTH = 4096
MAX_LISTED_BYTES = 48_000
"""A dataset must leave room for its envelope, and for others, in a message of 100 KB."""
MAX_LISTED_DTYPES_BYTES = 24_000

_encode = msgspec.json.Encoder().encode
_JSON_COLUMNS = ("tags", "shape", "dtypes", "dataset_parameters")
_ID_LIKE = re.compile(r"dataset_[0-9a-f-]{36}")
_PATH_WORDS = ("path", "file", "folder", "dir", "url", "uri", "location")


class DatasetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset as its owner sees it; see `messages.Dataset` for shape and types."""

    dataset_id: str
    name: str
    data_type: str
    tags: tuple[str, ...]
    description: str
    shape: list[int] | None = None
    dtypes: dict[str, str] | None = None
    path: str
    dataset_parameters: dict[str, Any] | None = None
    created: datetime.datetime
    modified: datetime.datetime

    def listed(self) -> messages.Dataset:
        """Return the dataset for researchers: without path or any parameter that looks like one.

        The types of very many columns (more than 24 KB of them) stay here too; the shape still tells how many.
        """
        is_long = self.dtypes is not None and len(_encode(self.dtypes)) > MAX_LISTED_DTYPES_BYTES
        parameters = None if self.dataset_parameters is None else _without_paths(self.dataset_parameters)
        told = msgspec.structs.replace(self, dtypes=None if is_long else self.dtypes, dataset_parameters=parameters)
        return msgspec.convert(told, messages.Dataset, from_attributes=True)

    def problem(self, node_folder: Path) -> str:
        """Say why no plan can be given the data now; empty if one can."""
        path = Path(self.path)
        try:
            leads_to = path.resolve(strict=True)
            mode = leads_to.stat().st_mode
        except PermissionError:
            leads_to, mode = path, 0
        except (OSError, RuntimeError):
            return "its path leads to nothing here now; its owner gives another with 'fedmon node dataset edit --path'"
        if leads_to != path:
            return "its path now leads through a link; its owner confirms it with 'fedmon node dataset edit --path'"
        is_folder, is_file = stat.S_ISDIR(mode), stat.S_ISREG(mode)
        is_of_its_type = (is_file and self.data_type not in FOLDERS) or (is_folder and self.data_type not in TABLES)
        if not (is_of_its_type and os.access(path, os.R_OK | os.X_OK * is_folder)):
            return f"this node cannot read it as a dataset of type {self.data_type!r} now"
        if node_folder.is_relative_to(path):
            return "it holds the folder of the node itself, with its keys"
        return ""


class DatasetFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The owner's description of a dataset; None is not given."""

    name: str | None = None
    data_type: str | None = None
    tags: tuple[str, ...] | None = None
    description: str | None = None
    dataset_parameters: dict[str, Any] | None = msgspec.field(default=None, name="parameters")


class DatasetRegister:
    """Datasets by name and id; belongs to the thread of its database, and looks at no data."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._read: tuple[int, list[DatasetRecord]] | None = None

    def add(self, fields: DatasetFields, measured: DatasetShape) -> DatasetRecord:
        """Offer data that was measured.

        Raises InvalidInputError when a field cannot be used, ConflictError when the name is taken or the
        tags are the same as, part of, or more than those of another dataset: a search could not tell them apart.
        """
        now, new_id = utc_now(), f"{ID_PREFIX}{uuid.uuid4()}"
        empty = DatasetRecord(
            dataset_id=new_id, name="", data_type="", tags=(), description="", path="", created=now, modified=now
        )
        return self._keep(empty, fields, measured)

    def edit(self, reference: str, changes: DatasetFields, measured: DatasetShape | None = None) -> DatasetRecord:
        """Change the given fields and check them all again; data of another path or type were measured.

        Raises NotFoundError, and as `add`; nothing is changed then.
        """
        return self._keep(msgspec.structs.replace(self.get(reference), modified=utc_now()), changes, measured)

    def _keep(self, before: DatasetRecord, fields: DatasetFields, measured: DatasetShape | None) -> DatasetRecord:
        given = {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
        found = {} if measured is None else msgspec.structs.asdict(measured)
        record = _checked(msgspec.structs.replace(before, **given, **found))
        self._refuse_conflict(record)
        with self._database.transaction():
            self._replace(record.dataset_id, record)
        return record

    def remove(self, reference: str) -> DatasetRecord:
        """Offer a dataset no longer; its files are not touched. Raises NotFoundError."""
        with self._database.transaction():
            record = self.get(reference)
            self._replace(record.dataset_id, None)
        return record

    def redo(self, line: Mapping[str, Any]) -> None:
        """Redo a line of the audit, for a register that was restored from an earlier copy.

        Raises StorageError for a line that does not hold the whole record, as those of earlier releases.
        """
        is_there = line["event"] != "dataset-remove"
        if is_there and "record" not in line:
            raise StorageError("the audit holds only a part of the dataset: add it again")
        self._replace(line["dataset_id"], msgspec.convert(line["record"], DatasetRecord) if is_there else None)

    def all(self) -> list[DatasetRecord]:
        """Return every dataset, in the order of their names; reads them only after something has changed."""
        changes = self._database.changes
        if self._read is not None and changes == self._read[0]:
            return list(self._read[1])
        rows = self._database.rows("SELECT * FROM datasets ORDER BY name, dataset_id")
        records = list(map(_record, rows))
        self._read = None if changes is None else (changes, records)
        return list(records)

    def get(self, reference: str) -> DatasetRecord:
        """Return a dataset by its name, its id, or the beginning of its id.

        Raises NotFoundError, ConflictError and InvalidInputError.
        """
        known = {each.dataset_id: each for each in self.all()}
        ids = {each: each for each in known}
        ids |= {each.name: each.dataset_id for each in known.values() if each.name == reference}
        return known[chosen(reference, ids, prefix=ID_PREFIX, what="dataset", see="fedmon node dataset list")]

    def search(self, tags: Collection[str]) -> list[DatasetRecord]:
        """Return the datasets that carry every one of ``tags``; every dataset when there are none."""
        wanted = set(tags)
        return [record for record in self.all() if wanted <= set(record.tags)]

    def _replace(self, dataset_id: str, record: DatasetRecord | None) -> None:
        """Replace the record of this id; inside a transaction."""
        self._database.execute("DELETE FROM datasets WHERE dataset_id = ?", (dataset_id,))
        if record is not None:
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
                raise ConflictError(f"dataset {other.name!r} exists: use another name, or 'fedmon node dataset edit'")
            if tags <= set(other.tags) or tags >= set(other.tags):
                raise ConflictError(
                    f"the tags {', '.join(sorted(tags))} are the same as, part of, or more than those of dataset "
                    f"{other.name!r} ({', '.join(sorted(other.tags))}): give each dataset a tag that the other lacks"
                )


def _columns(record: DatasetRecord) -> dict[str, object]:
    columns: dict[str, object] = msgspec.structs.asdict(record)
    for column in _JSON_COLUMNS:
        if columns[column] is not None:
            columns[column] = _encode(columns[column]).decode()
    for column in ("created", "modified"):
        columns[column] = timestamp(getattr(record, column))
    return columns


def _record(row: Row) -> DatasetRecord:
    decoded = {
        column: msgspec.json.decode(value) if column in _JSON_COLUMNS and value is not None else value
        for column, value in row.items()
    }
    return msgspec.convert(decoded, DatasetRecord)


def _checked(record: DatasetRecord) -> DatasetRecord:
    """Return the record with trimmed texts. Raises InvalidInputError naming the first field that cannot be used."""
    if record.data_type not in DATA_TYPES:
        raise InvalidInputError(f"data type {record.data_type!r} is not one of {', '.join(DATA_TYPES)}")
    name = checked_line(record.name, "the dataset's name", MAX_NAME_LENGTH)
    if _ID_LIKE.fullmatch(name):
        raise InvalidInputError(f"the name {name!r} looks like a dataset id: choose a name of another form")
    tags = tuple(dict.fromkeys(checked_line(tag, "a tag", MAX_TAG_LENGTH) for tag in record.tags))
    if not 0 < len(tags) <= MAX_TAGS:
        raise InvalidInputError(f"a dataset has 1 to {MAX_TAGS} tags, not {len(tags)}")
    description = record.description.strip()
    if len(description) > MAX_DESCRIPTION_LENGTH or visible_text(description) != description:
        raise InvalidInputError(
            f"a description is at most {MAX_DESCRIPTION_LENGTH} visible characters: {visible_text(description[:80])!r}"
        )
    checked = msgspec.structs.replace(record, name=name, tags=tags, description=description)
    try:
        size = len(msgspec.json.encode(msgspec.structs.replace(checked.listed(), dtypes=None)))
    except (TypeError, UnicodeEncodeError, RecursionError, OverflowError) as error:
        raise InvalidInputError(f"the dataset's parameters cannot be written as JSON: {error}") from error
    if size > MAX_LISTED_BYTES:
        raise InvalidInputError(
            f"the dataset takes {size} bytes in a message, more than {MAX_LISTED_BYTES}: shorten tags or parameters"
        )
    return checked


def _without_paths(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out every member that is named like a path or holds one, however deep."""
    return {
        key: _without_paths(value) if isinstance(value, Mapping) else value
        for key, value in parameters.items()
        if not any(word in key.lower() for word in _PATH_WORDS) and not _holds_path(value)
    }


def _holds_path(value: object) -> bool:
    if isinstance(value, str):
        return "/" in value or "\\" in value or value.startswith("~")
    if isinstance(value, (list, tuple)):
        return any(_holds_path(one) or isinstance(one, Mapping) for one in value)
    return False
