"""`monitor`: leases on live metrics, and what this node measures."""

from __future__ import annotations

from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import ErrorCode, Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.node.measure.leases import LeaseRefusedError
from fedmon.node.requests.handlers import resend
from fedmon.node.requests.handlers.envelope import echo, error
from fedmon.node.services import Services

OPENING = "the recording is being opened, so what it holds is told later"


def answer(request: Monitor, services: Services) -> Reply:
    """Start, renew or stop a lease; always tell what is measured, as far as the owner lets it leave."""
    leases, pipeline = services.leases, services.pipeline
    if not pipeline.enabled:
        return error(request, services.node_id, ErrorCode.UNSUPPORTED, "the owner of this node switched metrics off")
    lease_s: float | None = None
    interval_s = leases.interval_s()
    match request.action:
        case "start":
            try:
                granted = leases.start(
                    request.researcher_id,
                    request.instance,
                    interval_s=request.interval_s,
                    lease_s=request.lease_s,
                    live=request.live,
                )
            except LeaseRefusedError as refusal:
                return error(request, services.node_id, ErrorCode.BUSY, str(refusal))
            lease_s, interval_s = granted.lease_s, granted.interval_s
        case "stop":
            leases.stop(request.researcher_id, request.instance)
            interval_s = leases.interval_s()
        case "resend":
            return resend.answer(request, services)
        case "status":
            pass
    leaves, recorder = services.policy.metric_leaves, pipeline.recorder
    # What waits in memory is not all there is, and a researcher would take it for that.
    opening = recorder is not None and not recorder.ready
    return MonitorReply(
        action=request.action,
        interval_s=interval_s,
        lease_s=lease_s,
        streams=pipeline.streams_for(request.researcher_id),
        capabilities={name: reason for name, reason in pipeline.sampler.capabilities().items() if leaves(name)},
        metrics=[name for name in pipeline.sampler.metrics() if leaves(name)],
        hardware=pipeline.hardware() if leaves("host_hardware_info") else None,
        counts={name: count for name, count in pipeline.counts().items() if leaves(name)},
        reason=OPENING if opening else "",
        extents=[] if recorder is None or opening else recorder.extents(request.researcher_id),
        **echo(request, services.node_id),
    )
