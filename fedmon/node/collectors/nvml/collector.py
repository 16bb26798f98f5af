"""The collectors of a machine's GPUs: read ahead on one thread, so that a tick never waits for NVML."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Iterable

from fedmon.common.metrics.metric import Scope
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.tables.gpu import ROWS
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.nvml import queries
from fedmon.node.collectors.nvml.library import AbsentError
from fedmon.node.collectors.nvml.queries import Query
from fedmon.node.collectors.nvml.reader import LaneReader, NvmlSession, Round

logger = logging.getLogger(__name__)

_FRESH_S = 2.0
"""How old a reading of the fast lane may be; those of the other lanes may be as old as their lane is long."""
_MARGIN_S = 0.005
_MARGIN_RATIO = 1.5
_MAX_DOUBLINGS = 16


class GpuCollector:
    """Hands out each reading of one lane once; it was read just before this tick.

    Ticks are foreseen from the distance of the last ones. A tick for which no reading is ready gives None with the
    reason for every series of the reading before. ``close`` is final.
    """

    def __init__(self, name: str, lane: Lane, reader: LaneReader, metrics: Iterable[str]) -> None:
        self.name, self.lane = name, lane
        self._metrics, self._reader, self._session = tuple(dict.fromkeys(metrics)), reader, reader.session
        self._max_age_s = max(_FRESH_S, lane.value)
        self._changed = threading.Condition()
        self._newest: Round | CollectorUnavailableError | None = None
        self._is_taken = self._is_closed = self._is_stuck = self._has_entered = False
        self._began = self._took_s = 0.0
        self._reading_since: float | None = None
        self._plan = 0
        self._last_take: float | None = None
        self._distances = (1.0, 1.0)
        self._untaken = 0
        self._gave: tuple[str, ...] = ()

    def collect(self, _now: Instant) -> Reading:
        """Take the newest reading, once; never waits."""
        self.start()
        with self._changed:
            now = time.monotonic()
            if self._last_take is not None:
                self._distances = self._distances[1], now - self._last_take
            self._last_take, self._untaken = now, 0
            if self._newest is not None:
                self._foresee()
            newest, is_taken, self._is_taken = self._newest, self._is_taken, True
            if self._session.absent is not None:
                return Reading({})
            if newest is None or is_taken or now - self._began > self._max_age_s:
                newest = self._nothing(now)
        if isinstance(newest, CollectorUnavailableError):
            return Reading(dict.fromkeys(self._gave), dict.fromkeys(self._gave, newest.reason))
        self._gave = tuple(newest.values)
        return Reading(newest.values, newest.reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what each GPU gives, after a first reading for which all lanes together wait 5 s at most."""
        self.start()
        with self._changed:
            if self._session.absent is None:
                self._changed.wait_for(lambda: self._newest is not None, self._session.patience.left_s())
            found = self._session.absent or self._newest
            if isinstance(found, Round):
                return dict(found.report)
            reason = found.reason if found is not None else f"{Why.FAILED.value}: NVML has not answered yet"
            return dict.fromkeys(self._metrics, reason)

    def start(self) -> None:
        """Begin to read ahead; ``collect`` and ``probe`` do it by themselves."""
        with self._changed:
            if self._has_entered or self._is_closed or self._session.absent is not None:
                return
            self._has_entered = True
        self._session.enter()
        self._session.schedule(functools.partial(self._read, self._plan))

    def close(self) -> None:
        """Read no more; the last collector of a session ends NVML."""
        with self._changed:
            has_entered, self._has_entered, self._is_closed = self._has_entered, False, True
        if has_entered:
            self._session.leave()

    def _foresee(self) -> None:
        """Schedule the next reading shortly before the next tick."""
        if self._reading_since is not None or self._is_closed or self._last_take is None:
            return
        self._plan += 1
        # After a tick that came late the distance before it is still the right one. A tick that does not come is
        # awaited at doubling distances, so that a slower pace finds a fresh reading, and one that ended costs nothing.
        tick = self._last_take + min(self._distances) * (1 << min(self._untaken, _MAX_DOUBLINGS))
        due = max(tick - self._took_s * _MARGIN_RATIO - _MARGIN_S, self._began)
        self._session.schedule(functools.partial(self._read, self._plan), due)

    def _read(self, plan: int) -> None:
        """Read once, on the reader's thread, unless another time was planned since."""
        with self._changed:
            if self._is_closed or plan != self._plan:
                return
            self._began = self._reading_since = time.monotonic()
        try:
            result: Round | CollectorUnavailableError = self._reader.read()
        except CollectorUnavailableError as error:
            result = error
        with self._changed:
            self._newest, self._is_taken, self._reading_since = result, False, None
            self._took_s = time.monotonic() - self._began
            self._untaken += 1
            if self._is_stuck:
                self._is_stuck = False
                logger.warning("NVML answers again after %.1f s", self._took_s)
            if not isinstance(result, AbsentError):
                self._foresee()
            self._changed.notify_all()
        if isinstance(result, AbsentError):
            self.close()

    def _nothing(self, now: float) -> CollectorUnavailableError:
        """Say why there is no fresh reading."""
        since, call = self._reading_since, self._session.doing
        if since is not None and now - since > self._max_age_s:
            if not self._is_stuck:
                self._is_stuck = True
                logger.warning("NVML has not answered for %.1f s: %s", now - since, call)
            return CollectorUnavailableError(Why.FAILED, f"no answer for {now - since:.1f} s: {call}")
        if self._newest is None:
            return CollectorUnavailableError(Why.FIRST_SAMPLE, "the first reading is not finished")
        return CollectorUnavailableError(Why.FAILED, "no new reading is finished; the pace changed or reading is slow")


class AbsentGpus:
    """Stands for all GPUs where there are none: says so, and costs nothing."""

    name = "gpu"
    lane = Lane.SLOW

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def collect(self, _now: Instant) -> Reading:
        """Read nothing."""
        return Reading({})

    def probe(self) -> dict[str, str | None]:
        """Name every metric of GPUs with the reason."""
        return {metric.name: self._reason for metric in ROWS if metric.scope is Scope.GPU}


def nvml_collectors(session: NvmlSession) -> list[Collector]:
    """Return the collectors of this machine's GPUs, for the stream ``host``.

    Those of one session share its NVML. Without NVIDIA's library there is one, which says so and has no thread.
    """
    if session.absent is not None:
        return [AbsentGpus(session.absent.reason)]
    fast = LaneReader(session, queries.FAST, with_processes=True)
    slow = LaneReader(session, queries.SLOW, with_hardware=True)
    collectors = [
        GpuCollector("gpu", Lane.FAST, fast, [*_metrics((*queries.FAST, *queries.MIG)), "gpu_processes"]),
        GpuCollector("gpu-counters", Lane.MEDIUM, LaneReader(session, queries.MEDIUM), _metrics(queries.MEDIUM)),
        GpuCollector("gpu-pcie", Lane.MEDIUM, LaneReader(session, queries.PCIE), _metrics(queries.PCIE)),
        GpuCollector("gpu-limits", Lane.SLOW, slow, _metrics(queries.SLOW)),
    ]
    return list(collectors)


def _metrics(asked: Iterable[Query]) -> list[str]:
    both = [(*query.gives, *(query.otherwise.gives if query.otherwise else ())) for query in asked]
    return [metric for gives in both for metric, _ in gives]
