"""The collectors of a machine's GPUs: each reads ahead in a thread of its own, so that a tick never waits for NVML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedmon.common.clock import Deadline
from fedmon.common.metrics.metric import Scope
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.tables.gpu import ROWS
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.nvml import mig, nvlink, queries
from fedmon.node.collectors.nvml.ahead import ReadAhead
from fedmon.node.collectors.nvml.lane import LaneReader, Round
from fedmon.node.collectors.nvml.library import AbsentError
from fedmon.node.collectors.nvml.query import Query
from fedmon.node.collectors.nvml.session import NvmlSession

_PATIENCE_S = 5.0
_FRESH_S = 2.0
"""How old a reading of the fast lane may be; those of the other lanes may be as old as their lane is long."""


class Beginning:
    """The first readings of lanes that are probed together: all begin at once, and share one patience of 5 s."""

    def __init__(self) -> None:
        self._lanes: list[GpuCollector] = []
        self._deadline: Deadline | None = None

    def join(self, lane: GpuCollector) -> None:
        """Let a lane begin with the others."""
        self._lanes.append(lane)

    def deadline(self) -> Deadline:
        """Let every lane begin, and return until when to wait for their first readings."""
        if self._deadline is None:
            self._deadline = Deadline(_PATIENCE_S)
            for lane in self._lanes:
                lane.start()
        return self._deadline


class GpuCollector:
    """Hands out what one lane read of all GPUs just before this tick.

    A tick for which no reading is ready gives None with the reason for every series of the reading before.
    """

    def __init__(
        self,
        name: str,
        lane: Lane,
        reader: LaneReader,
        session: NvmlSession,
        *,
        metrics: Iterable[str],
        beginning: Beginning,
    ) -> None:
        self.name, self.lane = name, lane
        self._metrics, self._beginning = tuple(dict.fromkeys(metrics)), beginning
        beginning.join(self)
        self._gave: tuple[str, ...] = ()
        self._ahead: ReadAhead[Round] = ReadAhead(
            reader.read,
            name=f"fedmon-{name}",
            max_age_s=max(_FRESH_S, lane.value),
            doing=lambda: reader.doing,
            on_start=session.enter,
            on_end=session.leave,
        )

    def collect(self, _now: Instant) -> Reading:
        """Take the newest reading, once; never waits."""
        try:
            found = self._ahead.take()
        except AbsentError:
            return Reading({})
        except CollectorUnavailableError as error:
            return Reading(dict.fromkeys(self._gave), dict.fromkeys(self._gave, error.reason))
        self._gave = tuple(found.values)
        return Reading(found.values, found.reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what each GPU gives, after a first reading for which all lanes together wait 5 s at most."""
        try:
            return dict(self._ahead.first(self._beginning.deadline()).report)
        except CollectorUnavailableError as error:
            # What has not answered yet has failed to, and a first sample is nobody's excuse for ever.
            late = error.reason.startswith(Why.FIRST_SAMPLE.value)
            reason = f"{Why.FAILED.value}: NVML has not answered yet" if late else error.reason
            return dict.fromkeys(self._metrics, reason)

    def start(self) -> None:
        """Begin to read ahead; ``collect`` and ``probe`` do it by themselves."""
        self._ahead.start()

    def close(self) -> None:
        """End the thread; the last collector of a session ends NVML. ``collect`` would start both again."""
        self._ahead.close()


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
    beginning = Beginning()

    def lane(name: str, lane: Lane, asked: Sequence[Query], reader: LaneReader, *more: str) -> GpuCollector:
        metrics = (*_metrics(asked), *more)
        return GpuCollector(name, lane, reader, session, metrics=metrics, beginning=beginning)

    fast, counters, slow = queries.FAST, (*queries.MEDIUM, *nvlink.QUERIES), queries.SLOW
    return [
        lane("gpu", Lane.FAST, (*fast, *mig.QUERIES), LaneReader(session, fast, with_processes=True), "gpu_processes"),
        lane("gpu-counters", Lane.MEDIUM, counters, LaneReader(session, counters)),
        lane("gpu-pcie", Lane.MEDIUM, queries.PCIE, LaneReader(session, queries.PCIE)),
        lane("gpu-limits", Lane.SLOW, slow, LaneReader(session, slow, with_hardware=True)),
    ]


def _metrics(asked: Iterable[Query]) -> list[str]:
    return [
        metric for query in asked for metric, _ in (*query.gives, *(query.otherwise.gives if query.otherwise else ()))
    ]
