"""What a party answers that only tells what it measures: that it is there, and what it says of its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fedmon import __version__
from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire import codec, topics
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import ErrorCode, Monitor, Ping, Pong
from fedmon.node.requests.handlers.envelope import echo, error
from fedmon.node.requests.throttle import Throttle


class Answer(NamedTuple):
    """One reply, and the topic on which it goes."""

    topic: str
    payload: bytes


class Answers:
    """Answers `ping`, and `monitor` by ``monitor(request)``; None there is no answer.

    Whoever asks it alone for something else is told why it cannot: ``refusal``. Belongs to one thread.
    """

    def __init__(self, *, node_id: str, boot: int, monitor: Callable[[Monitor], Reply | None], refusal: str) -> None:
        self._node_id, self._boot, self._monitor, self._refusal = node_id, boot, monitor, refusal
        self._throttle = Throttle(burst=50, per_s=10.0)

    def to(self, topic: str, payload: bytes) -> Answer | None:
        """Return the reply to what came in on a topic; None where there is nothing to say."""
        address = topics.parse(topic)
        try:
            request = codec.decode_request(payload)
        except InvalidMessageError:
            return None
        is_own = request.researcher_id == address.researcher_id and request.node_id in (None, address.node_id)
        is_own = is_own and request.expires > utc_now()
        if not is_own or not self._throttle.allows(request.researcher_id):
            return None
        reply = self._reply(request, is_asked_alone=address.channel is topics.Channel.COMMAND)
        if reply is None:
            return None
        return Answer(topics.reply(request.researcher_id, request.instance, self._node_id), codec.encode(reply))

    def _reply(self, request: Request, *, is_asked_alone: bool) -> Reply | None:
        if isinstance(request, Ping):
            return Pong(time=utc_now(), boot=self._boot, agent_version=__version__, **echo(request, self._node_id))
        reply = self._monitor(request) if isinstance(request, Monitor) else None
        if reply is None and is_asked_alone:
            return error(request, self._node_id, ErrorCode.UNSUPPORTED, self._refusal)
        return reply
