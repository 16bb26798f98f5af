"""Datasets between Fed-BioMed 4.4 and ourselves."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire.fedbiomed4_datasets import dataset_of, record_of
from fedmon.common.wire.messages import Dataset
from tests.support.fedbiomed4 import RECORD, payload

CELLS = Dataset(
    dataset_id="dataset_1",
    name="cells",
    data_type="csv",
    tags=["cells"],
    description="Cells",
    shape=[569, 2],
    dtypes={"radius": "float64", "diagnosis": "object"},
    dataset_parameters={"index_col": 0},
    created=utc_now(),
    modified=utc_now(),
)


@pytest.mark.parametrize("with_dtypes", [False, True])
def test_a_dataset_is_told_with_exactly_their_fields(with_dtypes: bool) -> None:
    types = RECORD | ({"dtypes": list} if with_dtypes else {})

    record = json.loads(msgspec.json.encode(record_of(CELLS, with_dtypes=with_dtypes)))

    assert record.keys() == types.keys()
    assert [name for name, kind in types.items() if not isinstance(record[name], kind)] == []
    assert record.get("dtypes", ["float64", "object"]) == ["float64", "object"]


def test_what_is_not_known_of_a_dataset_is_told_as_they_tell_it() -> None:
    bare = msgspec.structs.replace(CELLS, shape=None, dtypes=None, dataset_parameters=None)

    record = record_of(bare, with_dtypes=True)

    assert (record["shape"], record["dtypes"], record["dataset_parameters"]) == ([], [], None)


def test_a_table_of_theirs_is_understood() -> None:
    dataset = dataset_of(payload("search_reply")["databases"][0])

    assert dataset == Dataset(
        dataset_id="dataset_0a7f3f6e-5a55-4f7b-a3f7-9a8f8d1c1b01",
        name="blood counts",
        data_type="csv",
        tags=["blood", "adults"],
        description="Blood counts of adults, 2019 to 2022",
        shape=[640, 3],
        dtypes={"0": "object", "1": "float64", "2": "int64"},
    )


def test_what_has_no_place_with_us_is_found_among_the_parameters() -> None:
    dataset = dataset_of(payload("list_reply")["databases"][1])

    assert dataset.shape is None
    assert dataset.dataset_parameters == {
        "index_col": 0,
        "shape": {"T1": [160, 192, 160], "label": [160, 192, 160], "demographics": [42, 7], "num_modalities": 2},
        "dlp_id": "dlp_1b7f4a0c-2e9d-4f5e-9c3b-8a6f7d5e4c03",
    }


@pytest.mark.parametrize(
    "change",
    [{"name": 5}, {"tags": "blood"}, {"tags": [5]}, {"dtypes": [5]}, {"dtypes": "x"}, {"dataset_parameters": []}],
)
def test_a_field_of_another_type_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        dataset_of(payload("search_reply")["databases"][0] | change)
