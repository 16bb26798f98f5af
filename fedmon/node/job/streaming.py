"""A job seen live: its tool appears to researchers as a node that tells what it measures, and sends it again."""

from __future__ import annotations

import collections
import logging
import threading
import time
from typing import Any

from fedmon.common.clock import Deadline
from fedmon.common.ids import JOB_PREFIX
from fedmon.common.settings import BrokerSettings
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import ErrorCode, Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.node.broker_link import BrokerLink
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.requests.dialect import echo, error
from fedmon.node.requests.monitor import OPENING, page

logger = logging.getLogger(__name__)

BACKLOG = 60
"""Batches that wait for the broker; what finds no place is in the recording, and sent when it is asked for."""
ENDED = "the run of the job ended"
REFUSAL = "this is a job: it tells what it measures and sends samples again, and has nothing else"
_MOST_PAUSED_S = 12.0
_QUIET_S, _LINGER_S = 0.3, 0.8
"""Whoever pulled samples when the run ended may pull the rest, but the job's end waits no longer than this."""
_CLOSE_WITHIN_S = 0.5


class Stream:
    """Streams the samples of one run to a broker, under an id that no other run has.

    `start`, `pause` and `stop` belong to one thread, `send` is safe from any; none waits for the broker but `stop`,
    for 2 s at most. What leaves are samples, hardware and counts; nothing of the job's command does.
    """

    def __init__(self, broker: BrokerSettings, node_id: str) -> None:
        self._broker, self._node_id = broker, node_id
        self._early: collections.deque[bytes] = collections.deque(maxlen=BACKLOG)
        self._starting = threading.Lock()
        self._link: BrokerLink | None = None
        self._measuring: Pipeline | None = None
        self._hardware: dict[str, Any] = {}
        self._may_read = threading.Event()
        self._may_read.set()
        self._reading = threading.Lock()
        self._asked_at = float("-inf")

    def send(self, payload: bytes) -> bool:
        """Send a batch, or keep it for a while; False when an older one had to go for it."""
        link = self._link
        if link is None:
            with self._starting:
                link = self._link
                if link is None:
                    has_room = len(self._early) < BACKLOG
                    self._early.append(payload)
                    return has_room
        return link.send(payload)

    def start(self, measuring: Pipeline) -> None:
        """Begin to connect, and answer for what is measured; returns at once."""
        self._measuring, self._hardware = measuring, measuring.hardware()
        link = BrokerLink(
            self._broker,
            node_id=self._node_id,
            boot=measuring.boot,
            streams=lambda: measuring.streams,
            monitor=self._monitor,
            refusal=REFUSAL,
            backlog=BACKLOG,
            client_id=_client_id(self._broker, self._node_id),
        )
        with self._starting:
            for payload in self._early:
                link.send(payload)
            self._early.clear()
            self._link = link
        link.start()
        logger.info("samples are streamed to %s as node %s", self._broker.url, self._node_id)

    def pause(self) -> None:
        """Read nothing from the recording until `stop`: it is about to be closed."""
        self._may_read.clear()
        if self._reading.acquire(timeout=1.0):
            self._reading.release()

    def stop(self) -> None:
        """Send what waits, and say farewell; the recording is complete, and nobody else reads it."""
        link, measuring = self._link, self._measuring
        self._may_read.set()
        if link is None or measuring is None:
            return
        self._linger(link)
        link.stop(_CLOSE_WITHIN_S, reason=ENDED)
        if link.dropped:
            logger.warning("%d batches did not reach the broker; all samples are in the recording", link.dropped)
        if measuring.recorder is not None:
            measuring.recorder.stop(0.0)  # closes what was opened once more to send samples again

    def _linger(self, link: BrokerLink) -> None:
        deadline, tick = Deadline(_LINGER_S), threading.Event()
        while link.is_connected and not deadline.passed() and time.monotonic() - self._asked_at < _QUIET_S:
            tick.wait(0.02)

    # --- on the link's thread ----------------------------------------------------------------------------------------

    def _monitor(self, request: Monitor) -> Reply | None:
        measuring = self._measuring
        if measuring is None or measuring.recorder is None:
            return None
        if request.action == "resend":
            return self._resend(request, measuring)
        capabilities = measuring.sampler.capabilities()
        is_ready = measuring.recorder.ready
        return MonitorReply(
            action=request.action,
            interval_s=measuring.sampler.interval_s,
            streams=measuring.streams,
            capabilities=capabilities,
            metrics=measuring.sampler.metrics(),
            hardware=self._hardware,
            counts=measuring.counts(),
            reason="" if is_ready else OPENING,
            extents=measuring.recorder.extents(request.researcher_id) if is_ready else [],
            **echo(request, self._node_id),
        )

    def _resend(self, request: Monitor, measuring: Pipeline) -> Reply:
        if measuring.recorder is None or not self._may_read.wait(_MOST_PAUSED_S):
            return error(request, self._node_id, ErrorCode.BUSY, "the run ends, and its recording is being closed")
        with self._reading:
            self._asked_at = time.monotonic()
            return page(
                request,
                measuring.recorder,
                node_id=self._node_id,
                leaves=lambda _metric: True,
                on_sent=lambda _metrics, _samples: None,
            )


def _client_id(broker: BrokerSettings, node_id: str) -> str | None:
    """Return the client id of a job: the access list of a broker with users makes "job-" and this its name in topics.

    So all jobs may share one user, and none speaks for a node. Without users no name is held to anything.
    """
    return node_id.removeprefix(JOB_PREFIX) if broker.username else None
