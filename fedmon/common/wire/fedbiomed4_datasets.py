"""Datasets as Fed-BioMed 4.4 tells of them, and as we do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire.messages import Dataset


def record_of(dataset: Dataset, *, with_dtypes: bool) -> dict[str, Any]:
    """Return what a Fed-BioMed node tells of a dataset: types of columns only in the answer to a search."""
    record: dict[str, Any] = {
        "name": dataset.name,
        "data_type": dataset.data_type,
        "tags": dataset.tags,
        "description": dataset.description,
        "shape": dataset.shape or [],
        "dataset_id": dataset.dataset_id,
        "dataset_parameters": dataset.dataset_parameters,
    }
    if with_dtypes:
        record["dtypes"] = list((dataset.dtypes or {}).values())
    return record


def dataset_of(record: Mapping[str, Any]) -> Dataset:
    """Read what a Fed-BioMed node tells of a dataset.

    Its types of columns name no columns: they are numbered from "0". What has no place with us, such as the shape of a
    folder of images and tables, is found among the parameters. Raises InvalidMessageError.
    """
    parameters = record.get("dataset_parameters")
    others = {name: record[name] for name in ("dlp_id",) if record.get(name) is not None}
    shape = record.get("shape")
    if shape and not _is_list_of(shape, int):
        others["shape"], shape = shape, None
    tags, dtypes = record.get("tags", []), record.get("dtypes") or []
    if not _is_list_of(tags, str):
        raise InvalidMessageError("the tags of a dataset are not a list of texts")
    if not _is_list_of(dtypes, str):
        raise InvalidMessageError("the types of a dataset's columns are not a list of texts")
    if not isinstance(parameters, dict | None):
        raise InvalidMessageError("the parameters of a dataset are not an object")
    return Dataset(
        dataset_id=_text(record, "dataset_id"),
        name=_text(record, "name"),
        data_type=_text(record, "data_type"),
        tags=tags,
        description=_text(record, "description"),
        shape=shape or None,
        dtypes=dict(zip(map(str, range(len(dtypes))), dtypes, strict=True)) or None,
        dataset_parameters={**(parameters or {}), **others} if parameters is not None or others else None,
    )


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str | None):
        raise InvalidMessageError(f"the {name} of a dataset is not a text")
    return value or ""


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(entry) is kind for entry in value)
