"""Everything of a node that measures: the sampler with its collectors, the publisher, and what keeps the samples."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedmon.common.metrics.batch import USER_STREAM, Batch, user_stream
from fedmon.common.metrics.sample import Sample
from fedmon.common.settings import NodeSettings
from fedmon.node.collectors.base import Collector
from fedmon.node.collectors.energy.job_energy import JOULES
from fedmon.node.measure.instruments import Instruments
from fedmon.node.measure.publisher import HOST_STREAM, Publisher
from fedmon.node.measure.record_buffer import HOLD_S
from fedmon.node.measure.recorder import Recorder
from fedmon.node.measure.sampler import Sampler
from fedmon.node.measure.user_values import UserValues
from fedmon.node.registers.jobs import JobWatches, WatchedJob

logger = logging.getLogger(__name__)

_JOB = "job-"
_JOULES_KEPT = 256
_LATE_SHARE = 0.1
"""Of a job's duration: so much of it may be missing from what is told of its energy."""


class Measuring:
    """The measuring parts of one node, made from its settings; methods are safe from any thread but for `hardware`.

    ``boot`` numbers this run of the process, ``send``, ``leaves`` and ``on_sent`` are as in Publisher, ``on_job_end``
    as in JobWatches. ``recording_file`` is where samples are kept, unless the owner switched that off; they wait there
    for at most ``hold_s`` until they are on the disk. perf is started ``perf_after_s`` after what it counts was there.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        boot: int,
        recording_file: Path,
        send: Callable[[bytes], bool],
        leaves: Callable[[str], bool],
        on_sent: Callable[[Iterable[str], int], None],
        on_job_end: Callable[[WatchedJob], object],
        hold_s: float = HOLD_S,
        perf_after_s: float = 0.0,
    ) -> None:
        self._settings, self._boot = settings, boot
        self.recorder = _recorder(settings, recording_file, hold_s) if settings.recording.enabled else None
        self.publisher = Publisher(
            node_id=settings.id,
            boot=boot,
            send=send,
            leaves=leaves,
            interval_s=settings.metrics.interval_s,
            keep=self._keep,
            on_sent=on_sent,
        )
        self._instruments = Instruments(
            settings,
            counts=self._counts,
            # Sampler and jobs are made after their collectors.
            times=lambda: self.sampler.collector_counts(),  # noqa: PLW0108
            job_cpu=lambda: self.jobs.cpu_seconds(),  # noqa: PLW0108
            job_pids=lambda: self.jobs.pids(),  # noqa: PLW0108
            perf_after_s=perf_after_s,
        )
        self.sampler = Sampler(
            {HOST_STREAM: self._instruments.host()},
            interval_s=settings.metrics.interval_s,
            on_sample=self._publish,
            cost_budget_ratio=settings.metrics.cost_budget_ratio,
        )
        self.jobs = JobWatches(
            self._instruments.roots, self._add_job_stream, self._remove_job_stream, on_end=on_job_end
        )
        self.user_values = UserValues(self.publisher.publish)
        self._job_joules: dict[str, tuple[float, float]] = {}
        self._is_started = False

    @property
    def boot(self) -> int:
        """The number of this run of the process."""
        return self._boot

    @property
    def enabled(self) -> bool:
        """Whether the owner lets this node measure."""
        return self._settings.metrics.enabled

    @property
    def streams(self) -> list[str]:
        """Name the streams of samples that this node has now."""
        if not self.enabled:
            return []
        return [*self.sampler.streams, *self._reported(USER_STREAM)]

    def streams_for(self, researcher_id: str) -> list[str]:
        """Name the streams that a researcher may read, that of its own runs included."""
        return [*self.streams, *self._reported(user_stream(researcher_id))]

    def _reported(self, stream: str) -> list[str]:
        return [stream] if self.enabled and self.publisher.last_seq(stream) is not None else []

    def hardware(self) -> dict[str, Any]:
        """Return what the machine is made of; belongs to one thread."""
        return self._instruments.hardware()

    def counts(self) -> dict[str, float]:
        """Return what sampler, publisher and recorder counted since the start."""
        return {name: value for name, value in self._counts().items() if value is not None}

    def job_energy(self, job_id: str, wall_s: float | None) -> float | None:
        """Return the joules that a job of this duration took until now; None where they were not measured.

        What was counted long before the end is not told: it is less than what the job took.
        """
        t, joules = self._job_joules.pop(f"{_JOB}{job_id}", (0.0, 0.0))
        is_recent = wall_s is not None and time.time() - t <= _LATE_SHARE * wall_s
        return joules if is_recent else None

    def start(self) -> None:
        """Begin to measure, unless the owner switched metrics off."""
        if self.enabled:
            if self.recorder is not None:
                self.recorder.start()
            self.sampler.start()
            self._is_started = True

    def stop(self, timeout_s: float = 2.0, *, last_sample: bool = False) -> None:
        """End the sampler, send what it gathered, and store what waits; nobody may read the recording any more.

        With ``last_sample`` one more is taken before.
        """
        if self._is_started:
            self.sampler.stop(last_sample=last_sample)
        self.publisher.flush()
        if self._is_started and self.recorder is not None and not self.recorder.stop(timeout_s):
            logger.error("the recording was not closed within %.1f s", timeout_s)

    def reload(self, settings: NodeSettings, leaves: Callable[[str], bool]) -> None:
        """Follow other settings from the next tick on; the pace is set by `follow`."""
        was_enabled, self._settings = self.enabled, settings
        self.publisher.set_leaves(leaves)
        self.sampler.set_cost_budget(settings.metrics.cost_budget_ratio)
        is_outdated = self._instruments.follow(settings)
        if self.recorder is not None:
            self.recorder.set_bounds(max_bytes=settings.recording.max_bytes, max_age_s=settings.recording.max_age_s)
        if not self._is_started:
            self.start()
        elif not self.enabled:
            for stream in self.sampler.streams:
                self.sampler.remove_stream(stream)
            self.publisher.flush()
        elif is_outdated or not was_enabled:
            self.sampler.add_stream(HOST_STREAM, self._instruments.host())
            self.jobs.resume()

    def follow(self, interval_s: float, *, live: bool) -> None:
        """Keep this pace, and close what fell silent; called about once a second."""
        if self.sampler.asked_interval_s != interval_s:
            self.sampler.set_interval(interval_s)
        self.publisher.set_pace(interval_s=self.sampler.interval_s, live=live)
        self.publisher.close_older(time.monotonic())
        if self._is_started:
            self.sampler.look_after()
            self.jobs.close_ended()

    def _publish(self, stream: str, sample: Sample) -> None:
        joules = sample.values.get(JOULES) if stream.startswith(_JOB) else None
        if joules is not None:
            self._job_joules[stream] = (sample.t, joules)
        self.publisher.publish(stream, sample)

    def _keep(self, batch: Batch) -> None:
        if self.recorder is not None:
            self.recorder.keep(batch)

    def _counts(self) -> dict[str, float | None]:
        counts = self.sampler.counts() | self.publisher.counts()
        return counts if self.recorder is None else counts | self.recorder.counts()

    def _add_job_stream(self, stream: str, collectors: Sequence[Collector]) -> None:
        job_id = stream.removeprefix(_JOB)
        others = self._instruments.job(job_id, cgroup=self.jobs.cgroup(job_id))
        self.sampler.add_stream(stream, [*collectors, *others])

    def _remove_job_stream(self, stream: str) -> None:
        while len(self._job_joules) > _JOULES_KEPT:
            self._job_joules.pop(next(iter(self._job_joules)))
        self.sampler.remove_stream(stream)
        self.publisher.flush(stream)


def _recorder(settings: NodeSettings, file: Path, hold_s: float) -> Recorder:
    bounds = settings.recording
    return Recorder(file, node_id=settings.id, max_bytes=bounds.max_bytes, max_age_s=bounds.max_age_s, hold_s=hold_s)
