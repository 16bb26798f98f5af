"""What a reporter answers to who wants to watch it: its pace is its program's, and a lease changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedmon.common.wire.messages import Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.node.requests.dialect import echo

Capabilities = Callable[[], Mapping[str, str | None]]
REFUSAL = "this is a reporter: it tells what it measures, and keeps nothing to send again"


def granted(
    request: Monitor, *, node_id: str, interval_s: float, streams: list[str], capabilities: Capabilities
) -> MonitorReply | None:
    """Return what is measured and how often; None for samples that are asked for again. For ``BrokerLink``."""
    if request.action == "resend":
        return None
    found = dict(capabilities())
    return MonitorReply(
        action=request.action,
        interval_s=interval_s,
        streams=streams,
        capabilities=found,
        metrics=sorted(name for name, reason in found.items() if reason is None),
        **echo(request, node_id),
    )
