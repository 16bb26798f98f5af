"""Jobs that no scheduler started, known by the variable FEDMON_JOB_ID where somebody set it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from fedmon.node.job.finders.found import MethodFailedError
from fedmon.node.job.finders.scheduler import Asked, Look, variables
from fedmon.node.job.identity import JobIdentity


class UnscheduledFinder:
    """Knows a job by a variable that its owner set."""

    command = "none"
    patterns = ()

    def __init__(self, _identity: JobIdentity, environ: Mapping[str, str]) -> None:
        self._id = os.fsencode(environ.get("FEDMON_JOB_ID", ""))

    def resolve(self, _look: Look) -> str:
        """Say that there is no id."""
        raise MethodFailedError("no scheduler started this job")

    def names(self, _raw_id: str) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def level(self, _raw_id: str) -> re.Pattern[str]:
        """Return what no name is."""
        return re.compile("(?!)")

    def ask(self, _look: Look, _raw_id: str) -> Asked:
        """Say that there is nobody to ask."""
        raise MethodFailedError("no scheduler started this job")

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Look for FEDMON_JOB_ID."""
        for name, value in variables(environment, b"FEDMON_JOB_ID"):
            if self._id and value == self._id:
                return b"%s=%s" % (name, value)
        return None

    def keeps(self, _title: str) -> bool:
        """Know no daemon."""
        return False
