"""By which method the numbers of a job are measured."""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane, Reading
from fedmon.node.collectors.job.watched import Watched

METHOD = "job_method_info"


class MethodCollector:
    """Says for CPU time, members, peak and swap whether they come from the processes or from the job's cgroup."""

    name = "job-method"
    lane = Lane.SLOW

    def __init__(self, watched: Watched, methods: Mapping[str, str]) -> None:
        self._watched = watched
        self._values = {series(METHOD, of=of, method=method): 1.0 for of, method in methods.items()}

    def collect(self, _now: Instant) -> Reading:
        """Say it again."""
        return Reading({} if self._watched.is_over else self._values)

    def probe(self) -> dict[str, str | None]:
        """Say it, too."""
        return dict.fromkeys(self._values)
