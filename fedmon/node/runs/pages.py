"""What a message can hold of a job: a page of its scalars, a piece of what it printed, a page of jobs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from fedmon.common.wire.runs import MAX_SCALARS, MAX_TRACE_BYTES, Job, Scalar, Trace
from fedmon.node.runs.folder import JobFolder
from fedmon.node.runs.order import Reported

SCALARS_BYTES = 40_000
_MAX_REMEMBERED = 64
_LEAST_TRACE_BYTES = 256

_encode = msgspec.json.Encoder().encode


class ScalarPages:
    """Finds the scalars of a job by their numbers; remembers where pages of the last jobs began. Of one thread."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    def page(self, job_id: str, folder: JobFolder, start: int) -> list[Scalar]:
        """Return scalars from a number on, as many as a page holds. Raises StorageError."""
        places = self._places.setdefault(job_id, [(0, 0)])
        self._places.move_to_end(job_id)
        if len(self._places) > _MAX_REMEMBERED:
            self._places.popitem(last=False)
        offset = max(offset for number, offset in places if number <= start)
        page: list[Scalar] = []
        size = 0
        while True:
            found = folder.events(offset)
            for event in found.events:
                if not isinstance(event, Reported):
                    continue
                if event.number < start:
                    continue
                scalar = Scalar(number=event.number, t=event.t, values=event.values, step=event.step)
                size += len(_encode(scalar)) + 1
                if page and (size > SCALARS_BYTES or len(page) >= MAX_SCALARS):
                    return page
                page.append(scalar)
            if found.next_offset == offset:
                return page
            offset = found.next_offset
            reported = [event.number for event in found.events if isinstance(event, Reported)]
            if reported and offset > places[-1][1]:
                places.append((reported[-1] + 1, offset))


def piece(read: Callable[[int, int], Trace], offset: int, budget: int) -> Trace:
    """Return as much of a trace as ``budget`` bytes of JSON hold; control characters take six bytes each."""
    most = max(_LEAST_TRACE_BYTES, min(MAX_TRACE_BYTES, budget))
    while True:
        trace = read(offset, most)
        if most <= _LEAST_TRACE_BYTES or len(_encode(trace)) <= budget:
            return trace
        most = max(_LEAST_TRACE_BYTES, most // 2)


def fitting(jobs: Iterable[Job], budget: int) -> list[Job]:
    """Return the first jobs that ``budget`` bytes of JSON hold, one of them at least."""
    page: list[Job] = []
    size = 0
    for job in jobs:
        size += len(_encode(job)) + 1
        if page and size > budget:
            break
        page.append(job)
    return page
