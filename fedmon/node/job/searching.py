"""The search of the tool for its job, also when that begins after the tool, or goes on after a pause."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence

from fedmon.node.collectors.base import THIS_MACHINE, CollectorUnavailableError
from fedmon.node.job.commands import Stop, runner
from fedmon.node.job.finders import Found, JobNotFoundError, UnknownJobError, find
from fedmon.node.job.finders.overhead import is_overhead
from fedmon.node.job.finders.processes import Processes
from fedmon.node.job.identity import JobIdentity

logger = logging.getLogger(__name__)

_FIRST_WITHIN_S = 5.0
_AGAIN_S = 2.0
_AGAIN_WITHIN_S = 2.0
"""A look again holds up nothing but the tool's own end, and of that a scheduler's command takes less than a second."""


class JobSearch:
    """Finds the processes of the job that this tool runs in, or those that were named; for one thread.

    ``stop`` ends a look at once. ``goes_on`` tells whether it is worth to look again: a scheduler or a launcher started
    the tool, and will end it with the job. On the second host of a job nothing of it runs before the first step, and
    between two of them. It is not worth it where the scheduler knows no such job.
    """

    def __init__(
        self, identity: JobIdentity, *, environ: Mapping[str, str], pids: Sequence[int], stop: Stop | None = None
    ) -> None:
        self._identity, self._environ, self._pids, self._stop = identity, environ, pids, stop
        self._next = 0.0
        self.goes_on = not pids and identity.scheduler != "none" and _is_kept()

    def first(self) -> Found:
        """Look for some seconds. Raises FedmonError."""
        try:
            return self._find(_FIRST_WITHIN_S, retries=5)
        except UnknownJobError:
            self.goes_on = False
            raise
        finally:
            self._next = time.monotonic() + _AGAIN_S

    def again(self) -> Found | None:
        """Look once more when it is time to; None when there is nothing, or nothing yet."""
        if time.monotonic() < self._next:
            return None
        try:
            return self._find(_AGAIN_WITHIN_S, retries=0)
        except JobNotFoundError as error:
            logger.debug("looked again: %s", error)
            return None
        finally:
            self._next = time.monotonic() + _AGAIN_S

    def _find(self, timeout_s: float, *, retries: int) -> Found:
        return find(
            self._identity,
            environ=self._environ,
            roots=THIS_MACHINE,
            run=runner(self._environ, stop=self._stop),
            stop=self._stop,
            pids=self._pids,
            exclude=(os.getpid(),),
            timeout_s=timeout_s,
            retries=retries,
        )


def _is_kept() -> bool:
    try:
        processes = Processes(THIS_MACHINE.proc)
    except CollectorUnavailableError:
        return False
    return any(is_overhead(processes, pid) for pid in processes.ancestors(os.getpid()))
