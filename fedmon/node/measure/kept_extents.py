"""What a node keeps of each stream: what its recording holds, together with what is still on the way there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fedmon.common.metrics.batch import Batch
from fedmon.common.store.recording import RecordedStream
from fedmon.common.wire.samples import Extent

Place = tuple[str, int]
"""A stream and a boot."""


def extent_of(stream: RecordedStream) -> Extent:
    """Return what a recording holds of a stream, as the wire says it."""
    return Extent(
        boot=stream.boot,
        stream=stream.stream,
        oldest_seq=stream.oldest_seq,
        last_seq=stream.last_seq,
        oldest_t=stream.oldest_t,
        last_t=stream.last_t,
    )


def joined(stored: Mapping[Place, Extent], waiting: Iterable[Batch]) -> dict[Place, Extent]:
    """Return what is kept in all; what waits comes after what is stored."""
    found = dict(stored)
    for batch in waiting:
        place = (batch.stream, batch.boot)
        before = found.get(place)
        if before is None:
            found[place] = Extent(
                boot=batch.boot,
                stream=batch.stream,
                oldest_seq=batch.seq,
                last_seq=batch.last_seq,
                oldest_t=batch.t[0],
                last_t=batch.t[-1],
            )
        elif batch.last_seq > before.last_seq:
            found[place] = msgspec.structs.replace(before, last_seq=batch.last_seq, last_t=batch.t[-1])
    return found
