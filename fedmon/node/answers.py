"""What a reporter answers: that it is there, what it measures, and that it keeps nothing to send again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedmon import __version__
from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire import codec, topics
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import ErrorCode, Monitor, Ping, Pong, Request
from fedmon.common.wire.samples import MonitorReply
from fedmon.node.handlers.envelope import echo, error
from fedmon.node.throttle import Throttle

Capabilities = Callable[[], Mapping[str, str | None]]


class Answer(NamedTuple):
    """One reply, and the topic on which it goes."""

    topic: str
    payload: bytes


class Answers:
    """Answers `ping` and `monitor`; whoever asks it alone for something else is told that it cannot.

    Its pace is its program's: a lease changes nothing. ``capabilities`` are as in Sampler. Belongs to one thread.
    """

    def __init__(
        self, *, node_id: str, boot: int, streams: list[str], interval_s: float, capabilities: Capabilities
    ) -> None:
        self._node_id, self._boot, self._streams, self._interval_s = node_id, boot, streams, interval_s
        self._capabilities = capabilities
        self._throttle = Throttle(burst=50, per_s=10.0)

    def to(self, topic: str, payload: bytes) -> Answer | None:
        """Return the reply to what came in on a topic; None where there is nothing to say."""
        address = topics.parse(topic)
        try:
            request = codec.decode_request(payload)
        except InvalidMessageError:
            return None
        is_own = request.researcher_id == address.researcher_id and request.expires > utc_now()
        if not is_own or not self._throttle.allows(request.researcher_id):
            return None
        reply = self._reply(request, is_asked_alone=address.channel is topics.Channel.COMMAND)
        if reply is None:
            return None
        return Answer(topics.reply(request.researcher_id, request.instance, self._node_id), codec.encode(reply))

    def _reply(self, request: Request, *, is_asked_alone: bool) -> Reply | None:
        match request:
            case Ping():
                return Pong(time=utc_now(), boot=self._boot, agent_version=__version__, **echo(request, self._node_id))
            case Monitor(action="start" | "stop" | "status"):
                capabilities = dict(self._capabilities())
                return MonitorReply(
                    action=request.action,
                    interval_s=self._interval_s,
                    streams=self._streams,
                    capabilities=capabilities,
                    metrics=sorted(name for name, reason in capabilities.items() if reason is None),
                    **echo(request, self._node_id),
                )
            case _ if is_asked_alone:
                reason = "this is a reporter: it tells what it measures, and keeps nothing to send again"
                return error(request, self._node_id, ErrorCode.UNSUPPORTED, reason)
        return None
