"""The measuring parts of a node, connected: sampler with collectors, publisher, recorder, jobs and user values."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmon.common.metrics.sample import USER_STREAM, Sample, user_stream
from fedmon.common.settings.values import NodeSettings
from fedmon.node.collectors.base import Collector
from fedmon.node.measure.jobs import JOB_STREAM, JobWatches, WatchedJob
from fedmon.node.measure.publisher import HOST_STREAM, Publisher, UserValues
from fedmon.node.measure.recorder import BUFFERED, DROPPED_FULL, HOLD_S, RECORDED, Recorder
from fedmon.node.measure.sampler import Sampler
from fedmon.node.measure.survey import Instruments, roots_of

logger = logging.getLogger(__name__)

_JOB_ENERGY = "job_energy_joules_total"
_ENERGIES_KEPT = 256
_LAST_READING_S = 0.1
"""How long a node waits for the energy of a job that has ended."""
_UNREAD_SHARE = 0.1
"""The largest share of a job's duration that may lie before its first energy reading and after its last one."""


class Pipeline:
    """The measuring parts of one node; methods are safe from any thread except `hardware`, which belongs to one.

    ``boot`` numbers this run of the process; ``send``, ``leaves`` and ``on_sent`` are as in Publisher, ``on_job_end``
    as in JobWatches. ``enabled`` is whether the owner lets this node measure, ``is_started`` whether it ever did.
    Samples go to ``recording_file`` after ``hold_s`` at most, unless the owner switched that off.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        boot: int,
        recording_file: Path,
        send: Callable[[bytes], bool],
        leaves: Callable[[str], bool],
        on_sent: Callable[[Iterable[str], int], None] = lambda _names, _samples: None,
        on_job_end: Callable[[WatchedJob], object] = lambda _job: None,
        hold_s: float = HOLD_S,
    ) -> None:
        self._settings, self.boot, self.enabled = settings, boot, settings.metrics.enabled
        self.recorder: Recorder | None = None
        if settings.recording.enabled:
            self.recorder = Recorder(
                recording_file,
                node_id=settings.id,
                max_bytes=settings.recording.max_bytes,
                max_age_s=settings.recording.max_age_s,
                hold_s=hold_s,
            )
        self.publisher = Publisher(
            node_id=settings.id,
            boot=boot,
            send=send,
            leaves=leaves,
            interval_s=settings.metrics.interval_s,
            keep=self.recorder.keep if self.recorder else lambda _batch: None,
            on_sent=on_sent,
        )
        self.user_values = UserValues(self.publisher.publish)
        self.sampler = Sampler(
            {},
            interval_s=settings.metrics.interval_s,
            on_tick=self._take,
            cost_budget_ratio=settings.metrics.cost_budget_ratio,
        )
        self.jobs = JobWatches(
            roots_of(settings),
            self._add_job_stream,
            self._remove_job_stream,
            on_end=on_job_end,
            sample_last=lambda stream: self.sampler.sample_stream(stream, is_last=True),
        )
        self._instruments = Instruments(
            settings,
            counts=self._counts,
            times=self.sampler.collector_counts,
            job_cpu=self.jobs.cpu_seconds,
            job_pids=self.jobs.pids,
        )
        self.sampler.add_stream(HOST_STREAM, self._instruments.host())
        self._job_energy: dict[str, tuple[float, float, float]] = {}
        self.is_started = False

    @property
    def streams(self) -> list[str]:
        """The present streams of samples."""
        return [*self.sampler.streams, *self._reported(USER_STREAM)] if self.enabled else []

    def streams_for(self, researcher_id: str) -> list[str]:
        """Name the streams that a researcher may read, including the stream of its runs."""
        return [*self.streams, *self._reported(user_stream(researcher_id))]

    def _reported(self, stream: str) -> list[str]:
        return [stream] if self.enabled and self.publisher.last_seq(stream) is not None else []

    def hardware(self) -> dict[str, Any]:
        """Return the machine's hardware."""
        return self._instruments.hardware()

    def counts(self) -> dict[str, float]:
        """Return the ``agent_`` metrics of sampler, publisher and recorder at this moment."""
        return {name: value for name, value in self._counts().items() if value is not None}

    def counters(self) -> dict[str, int]:
        """Return the counts of samples since the start: taken = open + recorded + waiting + never recorded."""
        publisher, kept = self.publisher, {} if self.recorder is None else self.recorder.counts()
        names = {RECORDED: "recorded", BUFFERED: "waiting", DROPPED_FULL: "never_recorded"}
        return {
            **{f"samples_{word}": int(kept[name] or 0) for name, word in names.items() if name in kept},
            "samples_taken": publisher.taken,
            "samples_published": publisher.published,
            "samples_dropped": publisher.dropped,
            "samples_open": publisher.open_samples,
            "samples_withheld": publisher.withheld,
            "ticks_overrun": self.sampler.overruns,
        }

    def job_energy(self, job_id: str, wall_s: float | None, cpu_s: float | None, *, ended: float) -> float | None:
        """Return the joules of a job that took ``wall_s`` and ``cpu_s`` until ``ended``, a Unix time; None if unknown.

        They are unknown if read for too small a part of that. They are read once more, unless a reading since the end
        has missed the job's last CPU time, or a GPU may be part of them, whose share is not known afterwards.
        """
        stream = f"{JOB_STREAM}{job_id}"
        is_whole = (
            cpu_s is not None
            and stream in self._job_energy
            and not self._instruments.has_gpus
            and self.jobs.note_cpu(job_id, cpu_s)
        )
        if is_whole:
            self.sampler.sample_stream(stream, timeout_s=_LAST_READING_S)
        joules, first, last = self._job_energy.pop(stream, (None, 0.0, 0.0))
        if wall_s is None or not (is_whole or self.sampler.interval_s <= _UNREAD_SHARE * wall_s):
            return None
        last = min(last, time.monotonic() - (time.time() - ended))
        return joules if last - first >= (1 - _UNREAD_SHARE) * wall_s else None

    def start(self) -> None:
        """Begin to measure, unless the owner switched metrics off."""
        if self.enabled:
            if self.recorder is not None:
                self.recorder.start()
            self.sampler.start()
            self.is_started = True

    def stop(self, timeout_s: float = 2.0, *, last_sample: bool = False) -> None:
        """End the sampler, after a ``last_sample`` if asked, send open batches, and store everything."""
        if self.is_started:
            self.sampler.stop(timeout_s, last_sample=last_sample)
        self.publisher.flush()
        if self.is_started and self.recorder is not None and not self.recorder.stop(timeout_s):
            logger.error("the recording was not closed within %.1f s", timeout_s)

    def reload(self, settings: NodeSettings, leaves: Callable[[str], bool]) -> None:
        """Follow other settings from the next tick on; the pace is set by `follow`."""
        was_enabled, self._settings, self.enabled = self.enabled, settings, settings.metrics.enabled
        self.publisher.set_leaves(leaves)
        self.sampler.set_cost_budget(settings.metrics.cost_budget_ratio)
        is_outdated = self._instruments.follow(settings)
        if self.recorder is not None:
            self.recorder.set_bounds(max_bytes=settings.recording.max_bytes, max_age_s=settings.recording.max_age_s)
        if not self.enabled:
            for stream in self.sampler.streams:
                self.sampler.remove_stream(stream)
            self.publisher.flush()
        elif is_outdated or not was_enabled:
            self.sampler.add_stream(HOST_STREAM, self._instruments.host())
            self.jobs.resume()
            self._job_energy.clear()  # the new collectors count from 0 again
        if not self.is_started:
            self.start()

    def follow(self, interval_s: float, *, live: bool) -> None:
        """Keep this pace, and close old batches; called about once a second once it is started."""
        if self.sampler.asked_interval_s != interval_s:
            self.sampler.set_interval(interval_s)
        self.publisher.set_pace(interval_s=self.sampler.interval_s, live=live)
        self.publisher.close_older(time.monotonic())
        self.sampler.check_stuck()
        self.jobs.close_ended()

    def _counts(self) -> dict[str, float | None]:
        counts = self.sampler.counts() | self.publisher.counts()
        return counts if self.recorder is None else counts | self.recorder.counts()

    def _take(self, samples: Mapping[str, Sample]) -> None:
        for stream, sample in samples.items():
            if not sample.values:
                continue
            if (joules := sample.values.get(_JOB_ENERGY)) is not None:
                _, first, _ = self._job_energy.get(stream, (0.0, sample.mono, 0.0))
                self._job_energy[stream] = joules, first, sample.mono
            self.publisher.publish(stream, sample)
            if stream.startswith(JOB_STREAM):
                self.jobs.handed_on(stream.removeprefix(JOB_STREAM))

    def _add_job_stream(self, stream: str, collectors: Sequence[Collector]) -> None:
        job_id = stream.removeprefix(JOB_STREAM)
        others = self._instruments.job(job_id, cgroup=self.jobs.perf_cgroup(job_id))
        self.sampler.add_stream(stream, [*collectors, *others])

    def _remove_job_stream(self, stream: str) -> None:
        watched = set(self.sampler.streams)
        for over in [each for each in list(self._job_energy) if each not in watched][:-_ENERGIES_KEPT]:
            self._job_energy.pop(over, None)
        self.sampler.remove_stream(stream)
        self.publisher.flush(stream)
