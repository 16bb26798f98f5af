"""What a job reports while it runs goes where it is heard: its researcher, the recording, and the node's log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from fedmon.common.metrics.sample import user_stream
from fedmon.common.wire.runs import JobScalar, RunScalars
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.measure.user_values import BURST, PER_S
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.throttle import Throttle
from fedmon.node.runs.order import Logged, Reported

logger = logging.getLogger(__name__)

LOGGER = "fedmon.job"
MAX_BYTES = 90_000
"""What the scalars of one message may take; the rest of it is for the envelope."""
_FRAME_BYTES, _VALUE_BYTES = 256, 32


class Telling:
    """Passes scalars and logs of jobs on; belongs to the node's worker.

    ``send(message)`` hands a message to the connection of its researcher. Scalars that come too fast, or while there is
    no connection, are not sent: they are numbered, and a researcher asks for those that are missing.
    """

    def __init__(
        self,
        measuring: Pipeline,
        *,
        node_id: str,
        send: Callable[[RunScalars], bool],
        policy: Policy,
        is_heard: bool,
    ) -> None:
        self._measuring, self._node_id, self._send = measuring, node_id, send
        self._policy, self._is_heard = policy, is_heard
        self._throttle = Throttle(burst=BURST, per_s=PER_S)
        self._waiting: dict[str, list[JobScalar]] = {}
        self._bytes: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self.unsent = 0

    def scalar(self, job_id: str, researcher_id: str, event: Reported) -> None:
        """Take one report: it is recorded for its researcher, and goes out with the next message."""
        if not self._throttle.allows(researcher_id, len(event.values)):
            self._dropped[researcher_id] += len(event.values)
            self.unsent += 1
            return
        scalar = JobScalar(
            job_id=job_id,
            number=event.number,
            t=event.t,
            mono=time.monotonic() + (event.t - time.time()),
            values=event.values,
            step=event.step,
            dropped=self._dropped[researcher_id],
        )
        if self._measuring.enabled and event.values:
            stream = user_stream(researcher_id)
            seq = self._measuring.publisher.publish(stream, scalar.sample(), is_private=True)
            scalar = msgspec.structs.replace(scalar, seq=seq)
        size_bytes = _FRAME_BYTES + sum(len(name) + _VALUE_BYTES for name in event.values)
        if not self._is_heard or self._bytes[researcher_id] + size_bytes > MAX_BYTES:
            self.unsent += 1
            return
        self._waiting.setdefault(researcher_id, []).append(scalar)
        self._bytes[researcher_id] += size_bytes

    def flush(self) -> None:
        """Send what waits, one message for each researcher; called once a second."""
        for researcher_id in list(self._waiting):
            self._flush(researcher_id)

    def ended(self, researcher_id: str) -> None:
        """Have the scalars of a job that ended recorded and sent, before its outcome."""
        self._measuring.publisher.flush(user_stream(researcher_id))
        self._flush(researcher_id)

    def _flush(self, researcher_id: str) -> None:
        scalars = self._waiting.pop(researcher_id, [])
        self._bytes.pop(researcher_id, None)
        if not scalars or self._policy.refusal(researcher_id) is not None:
            return
        message = RunScalars(
            node_id=self._node_id, researcher_id=researcher_id, boot=self._measuring.boot, scalars=scalars
        )
        if not self._send(message):
            self.unsent += len(scalars)

    def log(self, job_id: str, event: Logged) -> None:
        """Log what the plan logged, unless its words stay here; the policy's level is applied on the way out."""
        level = logging.getLevelNamesMapping()[event.level]
        job_logger = logging.getLogger(LOGGER)
        if self._policy.settings.job_output and job_logger.isEnabledFor(level):
            # A logger for each job would stay for ever; a record can have a name without one.
            job_logger.handle(logging.LogRecord(f"{LOGGER}.{job_id}", level, __file__, 0, "%s", (event.message,), None))
