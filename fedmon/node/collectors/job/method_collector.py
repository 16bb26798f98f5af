"""By which method the numbers of a job are measured."""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.collectors.job.cgroup_files import ONLY_CGROUP
from fedmon.node.collectors.job.watched import Watched

METHOD = "job_method_info"


class MethodCollector:
    """Says for CPU time, members, peak and swap whether they come from the processes or from the job's cgroup."""

    name = "job-method"
    lane = Lane.SLOW

    def __init__(self, watched: Watched, methods: Mapping[str, str], *, has_cgroup: bool) -> None:
        self._watched = watched
        without = f"{Why.UNSUPPORTED.value}: the job has no cgroup of its own"
        self._missing = {} if has_cgroup else dict.fromkeys(ONLY_CGROUP, without)
        self._values = {series(METHOD, of=of, method=method): 1.0 for of, method in methods.items()}

    def collect(self, _now: Instant) -> Reading:
        """Say it again."""
        return Reading({} if self._watched.is_over else self._values)

    def probe(self) -> dict[str, str | None]:
        """Say it, too, and what is not measured without a cgroup."""
        return {**dict.fromkeys(self._values), **self._missing}
