"""What is known of one dataset, which of that is allowed, and which of that leaves the node."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.wire import messages
from fedmon.node.registers.plan_view import visible_text

DATA_TYPES = ("csv", "tabular", "images", "medical-folder", "mednist", "default", "custom")
MAX_NAME_LENGTH = 256
MAX_TAGS = 64
MAX_TAG_LENGTH = 256
MAX_DESCRIPTION_LENGTH = 4096
MAX_LISTED_BYTES = 48_000
"""A dataset must leave room for its envelope, and for others, in a message of 100 KB."""
MAX_LISTED_DTYPES_BYTES = 24_000

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
        """Return what researchers are told: neither the path nor any parameter that looks like one.

        The types of very many columns (more than 24 KB of them) stay here too; the shape still tells how many.
        """
        dtypes = self.dtypes
        if dtypes is not None and _is_long(dtypes):
            dtypes = None
        return messages.Dataset(
            dataset_id=self.dataset_id,
            name=self.name,
            data_type=self.data_type,
            tags=list(self.tags),
            description=self.description,
            shape=self.shape,
            dtypes=dtypes,
            dataset_parameters=None if self.dataset_parameters is None else _without_paths(self.dataset_parameters),
            created=self.created,
            modified=self.modified,
        )


def checked_record(record: DatasetRecord) -> DatasetRecord:
    """Return the record with trimmed texts. Raises InvalidInputError naming the first field that cannot be used."""
    if record.data_type not in DATA_TYPES:
        raise InvalidInputError(f"data type {record.data_type!r} is not one of {', '.join(DATA_TYPES)}")
    name = _line(record.name, "the dataset's name", MAX_NAME_LENGTH)
    if _ID_LIKE.fullmatch(name):
        raise InvalidInputError(f"the name {name!r} looks like a dataset id: choose a name of another form")
    tags = tuple(dict.fromkeys(_line(tag, "a tag", MAX_TAG_LENGTH) for tag in record.tags))
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


def _is_long(dtypes: dict[str, str]) -> bool:
    characters = sum(map(len, dtypes)) + 16 * len(dtypes)
    # A character takes at most six bytes in JSON: most tables need no closer look.
    return 6 * characters > MAX_LISTED_DTYPES_BYTES and len(msgspec.json.encode(dtypes)) > MAX_LISTED_DTYPES_BYTES


def _line(text: str, what: str, longest: int) -> str:
    line = text.strip()
    if not line or len(line) > longest or "\n" in line or "\t" in line or visible_text(line) != line:
        raise InvalidInputError(
            f"{what} is 1 to {longest} visible characters on one line, not {visible_text(line[:80])!r}"
        )
    return line


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
