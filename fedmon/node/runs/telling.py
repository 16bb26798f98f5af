"""What a job reports while it runs goes where it is heard: telemetry, the recording, and the node's log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from fedmon.common.errors import FedmonError, InvalidMessageError
from fedmon.common.wire import codec
from fedmon.common.wire.samples import AddScalar
from fedmon.node.policy import Policy
from fedmon.node.runs.order import Logged, Reported
from fedmon.node.throttle import Throttle
from fedmon.node.user_values import UserValues

logger = logging.getLogger(__name__)

BURST = 2000
PER_S = 500.0
LOGGER = "fedmon.job"


class Telling:
    """Passes scalars and logs of jobs on; belongs to the node's worker.

    ``publish(payload)`` hands telemetry to the connection. Scalars that come too fast, or while there is no connection,
    are not sent: they are numbered, and a researcher asks for those that are missing. ``policy()`` is the one in force.
    ``user_values()`` is None where metrics are off, ``flush()`` has those that were gathered kept and sent.
    """

    def __init__(
        self,
        *,
        node_id: str,
        publish: Callable[[bytes], bool],
        policy: Callable[[], Policy],
        user_values: Callable[[], UserValues | None],
        flush: Callable[[], None],
        is_heard: bool,
    ) -> None:
        self._node_id, self._publish, self._policy = node_id, publish, policy
        self._user_values, self._flush, self._is_heard = user_values, flush, is_heard
        self._throttle = Throttle(burst=BURST, per_s=PER_S)
        self.unsent = 0

    def scalar(self, job_id: str, researcher_id: str, event: Reported) -> None:
        """Send one report, and have it recorded beside what is measured."""
        message = AddScalar(
            node_id=self._node_id,
            researcher_id=researcher_id,
            job_id=job_id,
            metric=event.values,
            iteration=event.step,
            t=event.t,
            number=event.number,
        )
        is_sent = False
        if self._is_heard and self._throttle.allows(job_id):
            with contextlib.suppress(InvalidMessageError):
                is_sent = self._publish(codec.encode(message))
        self.unsent += not is_sent
        values = self._user_values()
        if values is not None:
            try:
                # A value that was not finite is null here, and this way it is recorded as one.
                numbers = {name: float("nan") if value is None else value for name, value in event.values.items()}
                values.add_scalars(numbers, event.step, event.t, job=job_id)
            except FedmonError as error:
                logger.debug("a scalar of job %s is not recorded: %s", job_id, error)

    def ended(self) -> None:
        """Have the scalars of a job that ended recorded and sent, without waiting for those of others."""
        self._flush()

    def log(self, job_id: str, event: Logged) -> None:
        """Log what the plan logged, unless its words stay here; the policy's level is applied on the way out."""
        level = logging.getLevelNamesMapping()[event.level]
        job_logger = logging.getLogger(LOGGER)
        if self._policy().settings.job_output and job_logger.isEnabledFor(level):
            # A logger for each job would stay for ever; a record can have a name without one.
            job_logger.handle(logging.LogRecord(f"{LOGGER}.{job_id}", level, __file__, 0, "%s", (event.message,), None))
