"""`monitor`: leases on live metrics, the metrics of this node, and samples of its recording in pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch, may_read, user_stream
from fedmon.common.metrics.series import metric_name
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import ErrorCode, Monitor
from fedmon.common.wire.samples import Columns, MonitorReply, SamplesReply
from fedmon.node.measure.leases import LeaseTable
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.measure.publisher import MAX_SAMPLE_BYTES, fitting
from fedmon.node.requests.dialect import DeclinedError, echo
from fedmon.node.requests.policy import Policy

logger = logging.getLogger(__name__)

OPENING = "the recording is being opened; its extents follow later"
PAGE_BYTES = 65_536
_FRAME_BYTES = 1_024
"""Parts of the reply beside its samples."""
_MOST_WITHHELD = 5_000
_LARGEST = 2**63 - 1
_UNREADABLE = "this node cannot read its recording now; try again later, its owner's log says why"
_encode = msgspec.json.Encoder().encode


class MonitorHandler:
    """Leases on live metrics, the metrics of this node, and samples of its recording, within the policy.

    ``on_sent(metrics, samples)`` is called with the metrics of each page of samples, and how many samples it has.
    """

    def __init__(
        self, leases: LeaseTable, pipeline: Pipeline, policy: Policy, on_sent: Callable[[Iterable[str], int], object]
    ) -> None:
        self._leases, self._pipeline, self._policy, self._on_sent = leases, pipeline, policy, on_sent
        self._node_id = policy.node_id

    def __call__(self, request: Monitor) -> Reply:
        """Start, renew or stop a lease, or send a page of samples; each but the last is answered by the metrics.

        Raises DeclinedError.
        """
        if not self._pipeline.enabled:
            raise DeclinedError(ErrorCode.UNSUPPORTED, "the owner of this node switched metrics off")
        match request.action:
            case "start":
                self._leases.start(request)
            case "stop":
                self._leases.stop(request)
            case "resend":
                return self._resend(request)
        return self._measured(request)

    def _measured(self, request: Monitor) -> MonitorReply:
        pipeline, leaves = self._pipeline, self._policy.metric_leaves
        recorder = pipeline.recorder
        # What waits in memory is not all there is, and a researcher would take it for that.
        opening = recorder is not None and not (recorder.ready or recorder.foreign)
        return MonitorReply(
            action=request.action,
            interval_s=self._leases.interval_s(),
            lease_s=request.lease_s if request.action == "start" else None,
            streams=pipeline.streams_for(request.researcher_id),
            capabilities={name: reason for name, reason in pipeline.sampler.capabilities().items() if leaves(name)},
            metrics=[name for name in pipeline.sampler.metrics() if leaves(name)],
            hardware=pipeline.hardware() if leaves("host_hardware_info") else None,
            counts={name: count for name, count in pipeline.counts().items() if leaves(name)},
            reason=OPENING if opening else "",
            extents=[] if recorder is None or not recorder.ready else recorder.extents(request.researcher_id),
            **echo(request, self._node_id),
        )

    def _resend(self, request: Monitor) -> Reply:
        """Send one page of the samples that were asked for and may leave."""
        recorder = self._pipeline.recorder
        if recorder is None or recorder.foreign:
            why = "its owner switched that off" if recorder is None else recorder.foreign
            reason = f"this node keeps no recording ({why}), so samples that were missed cannot be sent again"
            raise DeclinedError(ErrorCode.UNSUPPORTED, reason)
        first = request.first_seq or 0
        last = _LARGEST if request.last_seq is None else request.last_seq
        if first > last:
            reason = f"samples {first} to {last} were asked for: the first comes after the last"
            raise DeclinedError(ErrorCode.MALFORMED, reason)
        if not recorder.ready:
            raise DeclinedError(ErrorCode.BUSY, _UNREADABLE)
        is_allowed = may_read(request.stream, request.researcher_id)
        kept = recorder.extent(request.stream, request.boot) if is_allowed else None
        if kept is None and (request.boot is None or not is_allowed or request.stream not in recorder.streams()):
            there = ", ".join(sorted({extent.stream for extent in recorder.extents(request.researcher_id)})[:20])
            reason = f"this node keeps no samples of stream {request.stream[:64]!r}; it keeps {there or 'none at all'}"
            raise DeclinedError(ErrorCode.FAILED, reason)
        # What its own runs report leaves to a researcher whatever the policy says of metrics, live and here.
        is_own = request.stream == user_stream(request.researcher_id)
        found = _Page()
        try:
            if kept is not None:
                last = min(last, kept.last_seq)
                if request.since_t is not None:
                    newer = recorder.samples(
                        kept.stream, kept.boot, first, last, wanted=lambda _: False, since_t=request.since_t
                    )
                    first = next((batch.seq for batch in newer), last + 1)
                wanted = (lambda _metric: True) if is_own else self._policy.metric_leaves
                found.fill(recorder.samples(kept.stream, kept.boot, first, last, wanted=wanted))
        except StorageError as problem:
            logger.error("samples cannot be sent again: %s", problem)  # noqa: TRY400 - the error says it all
            raise DeclinedError(ErrorCode.BUSY, _UNREADABLE) from None
        self._on_sent(found.names, sum(len(batch.t) for batch in found.batches))
        return SamplesReply(
            boot=request.boot or 0 if kept is None else kept.boot,
            stream=request.stream,
            batches=found.batches,
            next_seq=found.next_seq,
            oldest_seq=None if kept is None else kept.oldest_seq,
            last_seq=None if kept is None else kept.last_seq,
            **echo(request, self._node_id),
        )


class _Page:
    """As many samples as fit; ``next_seq`` is the first that did not, None when all did."""

    def __init__(self) -> None:
        self.batches: list[Columns] = []
        self.next_seq: int | None = None
        self._left = PAGE_BYTES - _FRAME_BYTES
        self._withheld = 0

    @property
    def names(self) -> list[str]:
        """The metrics that the page carries."""
        series = dict.fromkeys(name for batch in self.batches for name in batch.columns)
        return list(dict.fromkeys(map(metric_name, series)))

    def fill(self, found: Iterator[Batch]) -> None:
        """Take samples until the page is full, or too many were passed of which nothing leaves."""
        for batch in found:
            if self._withheld >= _MOST_WITHHELD or (batch.columns and not self._add(batch)):
                self.next_seq = self.next_seq or batch.seq
                return
            if not batch.columns:
                self._withheld += len(batch.t)

    def _add(self, batch: Batch) -> bool:
        """Add a batch, or the front part of it that fits; False when the page is full."""
        part = batch
        while (size := len(_encode(_columns(part)))) > self._left and len(part.t) > 1:
            share = len(part.t) * self._left // size
            part = part.part(part.seq, part.seq + max(0, share - 1))
        if size > self._left and self.batches:
            self.next_seq = part.seq
            return False
        if size > MAX_SAMPLE_BYTES:  # alone a sample may take a whole message, and fills the page
            part = fitting(part, MAX_SAMPLE_BYTES)
        self.batches.append(_columns(part))
        self._left -= size + 1
        if part.last_seq < batch.last_seq:
            self.next_seq = part.last_seq + 1
        return self.next_seq is None


def _columns(part: Batch) -> Columns:
    return Columns(seq=part.seq, t=part.t, mono=part.mono, columns=part.columns, reasons=part.reasons)
