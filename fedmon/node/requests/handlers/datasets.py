"""`list` and `search`: the datasets that a researcher may see, in pages that fit into a message."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fedmon.common.wire.messages import Dataset, ListDatasets, ListReply, SearchDatasets, SearchReply
from fedmon.node.registers.dataset_records import DatasetRecord
from fedmon.node.requests.handlers.envelope import echo
from fedmon.node.services import PAGE_BYTES, Services

_DATASET_BYTES = PAGE_BYTES // 2


def answer_list(request: ListDatasets, services: Services) -> ListReply:
    """List what this researcher may see."""
    seen = _visible(services.datasets.all(), request.researcher_id, services)
    datasets, next_offset = _page(seen, request.offset, request.limit, services.page_bytes)
    return ListReply(
        datasets=datasets,
        count=len(seen),
        offset=request.offset,
        next_offset=next_offset,
        **echo(request, services.node_id),
    )


def answer_search(request: SearchDatasets, services: Services) -> SearchReply:
    """List what this researcher may see and carries every tag."""
    seen = _visible(services.datasets.search(request.tags), request.researcher_id, services)
    datasets, next_offset = _page(seen, request.offset, request.limit, services.page_bytes)
    return SearchReply(
        datasets=datasets,
        count=len(seen),
        offset=request.offset,
        next_offset=next_offset,
        **echo(request, services.node_id),
    )


def _visible(records: Sequence[DatasetRecord], researcher_id: str, services: Services) -> list[DatasetRecord]:
    return [record for record in records if services.policy.may_see(researcher_id, record.dataset_id, record.name)]


def _page(
    records: Sequence[DatasetRecord], offset: int, limit: int, page_bytes: int
) -> tuple[list[Dataset], int | None]:
    """Return the datasets from ``offset`` on that fit, and where the next page starts."""
    page: list[Dataset] = []
    size = 0
    for record in records[offset : offset + limit]:
        dataset = _fitting(record.listed())
        size += len(msgspec.json.encode(dataset)) + 1
        if page and size > page_bytes:
            break
        page.append(dataset)
    end = offset + len(page)
    return page, end if end < len(records) else None


def _fitting(dataset: Dataset) -> Dataset:
    """Leave out the column types, then the parameters, of a dataset that alone would fill a message."""
    if len(msgspec.json.encode(dataset)) <= _DATASET_BYTES:
        return dataset
    slim = msgspec.structs.replace(dataset, dtypes=None)
    if len(msgspec.json.encode(slim)) > _DATASET_BYTES:
        slim = msgspec.structs.replace(slim, dataset_parameters=None, description=slim.description[:1000])
    return slim
