"""The messages that carry samples, and a node's description of its metrics and recording."""

from __future__ import annotations

from typing import Any

import msgspec

from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.envelope import Count, Id, Message, Reply, ShortText


class AddScalar(Message, frozen=True, kw_only=True, tag="add_scalar"):
    """Scalars of a training loop, beside the resources of its node.

    ``number`` counts the reports of a run from 0, so that a lost one is noticed; null if reports are not counted.
    """

    node_id: Id
    researcher_id: str = ""
    job_id: str = ""
    metric: dict[str, float | None]
    iteration: int | None = None
    epoch: int | None = None
    t: float | None = None
    number: Count | None = None


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The kept part of one stream of one boot: samples ``oldest_seq`` to ``last_seq``, and their times."""

    boot: Count
    stream: ShortText
    oldest_seq: Count
    last_seq: Count
    oldest_t: float
    last_t: float


class MonitorReply(Reply, frozen=True, kw_only=True, tag="monitor"):
    """The lease as granted, and the metrics of this node.

    ``capabilities`` maps a metric or collector to null when measured, else to the reason why not. ``extents`` are the
    samples that the node's recording holds, newest first; when there is a ``reason`` and none of them, that is not
    known yet. ``hardware`` describes the machine. ``counts`` are the node's counts since its start: samples dropped,
    ticks missed and the like.
    """

    action: str
    interval_s: float
    lease_s: float | None = None
    streams: list[str]
    capabilities: dict[str, str | None]
    metrics: list[str]
    reason: str = ""
    extents: list[Extent] = []
    hardware: dict[str, Any] | None = None
    counts: dict[str, float] = {}


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of the stream that a SamplesReply names; fields as in Batch."""

    seq: Count
    t: list[float]
    mono: list[float]
    columns: dict[str, list[float | None]] = msgspec.field(name="m")
    reasons: dict[str, str] = {}


class SamplesReply(Reply, frozen=True, kw_only=True, tag="samples"):
    """One page of samples that were asked for again, in order, if the owner lets them leave.

    ``next_seq`` is the start of the next page, null when this one is the last. Requested samples below it that are not
    here are lost. ``oldest_seq`` and ``last_seq`` bound the samples kept now, null if none of this boot are kept.
    """

    boot: Count
    stream: ShortText
    batches: list[Columns]
    next_seq: Count | None = None
    oldest_seq: Count | None = None
    last_seq: Count | None = None

    def as_batches(self) -> list[Batch]:
        """Return the samples as batches."""
        return [
            Batch(node_id=self.node_id, boot=self.boot, stream=self.stream, **msgspec.structs.asdict(part))
            for part in self.batches
        ]
