"""The measuring of one job and its host, from the first sample to the last."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon import __version__
from fedmon.common.clock import utc_now
from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.settings import (
    MetricsSettings,
    NodeSettings,
    PerfSettings,
    RecordingSettings,
    broker_from_url,
)
from fedmon.common.store.recording import Recording
from fedmon.node.collectors.job.cgroup import JobCgroup
from fedmon.node.job.channel import Channel
from fedmon.node.job.commands import StopRequest, runner
from fedmon.node.job.ending import End
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.limit import TimeLimit
from fedmon.node.job.options import JobOptions
from fedmon.node.job.own_cgroup import remove_cgroup
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.measure.recorder import BUFFERED, DROPPED_FULL
from fedmon.node.registers.jobs import WatchedJob

if TYPE_CHECKING:
    from fedmon.node.job.finders import Found
    from fedmon.node.job.finders.search import JobSearch
    from fedmon.node.job.streaming import Stream

HOST = "host"

logger = logging.getLogger(__name__)

MAX_BYTES, MAX_AGE_S = 2**40, 315_360_000.0
_STOP_WITHIN_S = 10.0
_TELL_AGAIN_S = 5.0
_PERF_AFTER_S = 0.5
"""Finding out what perf can count starts some processes, for which no short command is to wait."""
ALL_GONE = "all processes of the job have ended"


class MeasuredJob:
    """Samples one host and one job on it into the recording of ``members``; for the main thread of the tool.

    ``limit`` knows when the scheduler ends the job; ``stop`` says that the run is to end, whatever is looked for.
    """

    def __init__(
        self,
        options: JobOptions,
        identity: JobIdentity,
        *,
        members: Membership,
        environ: Mapping[str, str],
        channel: Channel | None,
        stop: StopRequest | None = None,
    ) -> None:
        self._stop = stop
        self._options, self._identity, self._environ, self._channel = options, identity, environ, channel
        self._end_record: WatchedJob | None = None
        self._search: JobSearch | None = None
        self._is_watched = False
        self._first_start: int | None = None
        self._stream: Stream | None = None
        if options.broker is not None:
            from fedmon.node.job.streaming import Stream

            self._stream = Stream(options.broker, members.node_id)
        self._settings = settings = _settings(options, members.node_id)
        self._measuring = Pipeline(
            settings,
            boot=members.boot,
            recording_file=members.recording,
            send=(lambda _payload: True) if self._stream is None else self._stream.send,
            leaves=lambda _metric: self._stream is not None,
            on_sent=lambda _names, _samples: None,
            on_job_end=self._on_end,
            hold_s=options.hold_s,
            perf_after_s=_PERF_AFTER_S,
        )
        self._teller = Teller(
            members.recording,
            node_id=members.node_id,
            boot=members.boot,
            identity=identity,
            options=options,
            clock_offset_s=members.clock_offset_s,
        )
        self._told, self._tell_at = False, 0.0
        self.limit = TimeLimit(identity, environ, runner(environ, stop=stop))
        self._cgroup: JobCgroup | None = None
        self.early_end: End | None = None
        """Why there is nothing to wait for."""
        self.problem: FedmonError | None = None
        """Why the job is not measured."""
        self.last_document: dict[str, Any] = {}
        """What was written down last."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that the job had first."""
        return tuple(self._teller.job.get("pids") or ())

    @property
    def counts_events(self) -> bool:
        """Whether there is a perf that counts events."""
        return self._settings.perf.enabled

    def start(self) -> None:
        """Take the first sample, of the job too."""
        if self._channel is not None:
            # Its command runs already: the first tick is to have both.
            self._watch_command(self._channel)
            self._measuring.start()
        else:
            from fedmon.node.job.finders.search import JobSearch

            self._measuring.start()
            self._search = JobSearch(self._identity, environ=self._environ, pids=self._options.pids, stop=self._stop)
            self._find(self._search)
            self._measuring.sampler.sample_now()
        if self._stream is not None:
            self._stream.start(self._measuring)
        self._measuring.follow(self._options.sampling_freq, live=True)
        self.limit.ask(first_start=self._first_start)

    def look_after(self) -> str | None:
        """Do what is due about once a second; returns why to end, when no process of the job is left, nor can come."""
        self._measuring.follow(self._options.sampling_freq, live=True)
        if not self._told and time.monotonic() >= self._tell_at:
            self.describe()
            _read_ahead()
        if self._search is None:
            return None
        if self._end_record is not None:
            if not self._search.goes_on:
                return ALL_GONE
            logger.info("%s, and it is looked for again until the run is ended", ALL_GONE)
            self._end_record, self._is_watched = None, False
        if not self._is_watched:
            self._find_again(self._search)
            return None
        pids = self._measuring.jobs.pids().get(self._identity.key, ())
        if pids and not any(map(_is_there, pids)):
            # Whether there are new ones the next sample tells, and that may be far away.
            self._measuring.sampler.sample_now()
        return None

    def describe(self) -> dict[str, Any]:
        """Write down what is known by now, and return it."""
        self.last_document = self._teller.document(self._measuring)
        self._told = self._teller.tell(self.last_document)
        self._tell_at = time.monotonic() + _TELL_AGAIN_S
        return self.last_document

    def finish(self, end: End) -> int:
        """Take the last sample and write everything down; returns how many samples are lost."""
        self._teller.ended(end)
        document = self._teller.document(self._measuring)
        if self._stream is not None:
            self._stream.pause()
        self._measuring.jobs.command_ended(self._identity.key, end.switches)
        self._measuring.stop(_STOP_WITHIN_S, last_sample=True)
        if self._stream is not None:
            self._stream.stop()
        counts = self._measuring.counts()
        lost = int(counts.get(DROPPED_FULL, 0) + counts.get(BUFFERED, 0))
        self._teller.lost = {"samples_lost": lost} if lost else {}
        document["tool"] |= self._teller.lost
        left = len(self._measuring.jobs.pids().get(self._identity.key, ()))
        if left and end.exit_code is not None:
            # A shell does not wait for what a command left behind, and who waits for us shall not either.
            logger.warning("%d processes that the command started go on without it, and are measured no longer", left)
            self._teller.job |= {"left_running": left}
        if self._channel is not None and self._channel.is_closed and self._cgroup is not None:
            remove_cgroup(self._cgroup.folders.values())  # who made it was killed, and nobody else knows of it
        self._teller.tell(document, mark=f"the run ended: {end.reason}")
        self.last_document = document
        return lost

    # --- the job -----------------------------------------------------------------------------------------------------

    def _watch_command(self, channel: Channel) -> None:
        told = channel.listen(None)
        if told is None or told.kind != "started":
            why, code = ("nobody did", None) if told is None else (told.text, told.code)
            self.early_end = End(reason=f"the command could not be started: {why}", exit_code=code)
            return
        self._teller.began(told.t)
        cgroup = JobCgroup(path=told.path, folders={n: Path(f) for n, f in told.folders.items()})
        how = {"method": "command", "confidence": "certain", "pids": [told.pid]}
        self._teller.job |= {**how, "cgroup": cgroup.path or None}
        try:
            if cgroup.folders:
                self._cgroup = cgroup
                self._measuring.jobs.add(self._identity.key, cgroup=cgroup, is_command=True)
            else:
                pids, mine = [told.pid], (os.getpid(),)
                self._measuring.jobs.add(self._identity.key, pids=pids, exclude=mine, is_command=True)
        except FedmonError as error:  # it was over before anybody could look, which is no mistake
            logger.warning("the command is not measured: %s", error)

    def _find(self, search: JobSearch) -> None:
        try:
            self._watch(search.first())
            self._is_watched = True
        except FedmonError as error:
            logger.warning("the job is not measured, only its host: %s", error)
            self.problem = error
            if search.goes_on:
                logger.info("the job is looked for again until the run is ended")
            else:
                self.early_end = End(reason=str(error))

    def _find_again(self, search: JobSearch) -> None:
        found = search.again()
        if found is None:
            return
        try:
            self._watch(found)
        except FedmonError as error:  # it has ended since it was found
            logger.info("the job is not measured: %s", error)
            return
        self.problem, self._is_watched = None, True
        self._measuring.sampler.sample_now()
        self.describe()

    def _watch(self, found: Found) -> None:
        for method, why in found.tried:
            logger.info("the job was not found by %s: %s", method, why)
        logger.info(
            "the job was found by %s (confidence %s): %d processes %s",
            found.method, found.confidence.value, len(found.pids), found.detail,
        )  # fmt: skip
        self._teller.job |= {
            "method": found.method,
            "confidence": found.confidence.value,
            "pids": list(found.pids),
            "cgroup": found.cgroup,
        }
        if found.method != "pids" and self._first_start is None:
            self._first_start = min(found.starts.values(), default=None)
        from fedmon.node.job.finders.overhead import is_launcher

        jobs, key, mine = self._measuring.jobs, self._identity.key, (os.getpid(),)
        if found.cgroup is not None:
            try:
                jobs.add(key, cgroup=found.cgroup, exclude=mine, overhead=found.overhead, is_launcher=is_launcher)
                return
            except FedmonError as error:
                logger.warning("the job's cgroup cannot be watched, its processes are: %s", error)
        jobs.add(
            key,
            pids=found.pids,
            starts=found.starts,
            marker=found.marker,
            exclude=mine,
            overhead=found.overhead,
            is_launcher=is_launcher,
        )

    def _on_end(self, job: WatchedJob) -> None:
        self._end_record = job


def _settings(options: JobOptions, node_id: str) -> NodeSettings:
    perf = PerfSettings(enabled=shutil.which("perf") is not None, interval_s=min(60.0, max(0.2, options.sampling_freq)))
    return NodeSettings(
        id=node_id,
        broker=options.broker or broker_from_url("mqtt://localhost"),
        metrics=MetricsSettings(interval_s=options.sampling_freq),
        recording=RecordingSettings(max_bytes=MAX_BYTES, max_age_s=MAX_AGE_S),
        perf=perf,
    )


def _read_ahead() -> None:
    """Load what follows the end while the job runs: whoever waits for a command would wait for that, too."""
    importlib.import_module("fedmon.node.job.merge")


def _is_there(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


class Teller:
    """Keeps the description of one host's run in its recording, also when that takes several tries.

    For one thread. ``job`` is what is known of the job and changes while the run goes on.
    """

    def __init__(
        self,
        recording: Path,
        *,
        node_id: str,
        boot: int,
        identity: JobIdentity,
        options: JobOptions,
        clock_offset_s: float | None,
    ) -> None:
        self._recording, self._node_id, self._boot = recording, node_id, boot
        self._identity, self._options, self._clock_offset_s = identity, options, clock_offset_s
        self._problem = ""
        self.lost: dict[str, int] = {}
        self.job: dict[str, Any] = {
            "job_id": identity.job_id,
            "scheduler": identity.scheduler,
            "cluster": identity.cluster,
            "name": identity.name or options.labels.get("name"),
            "user": identity.user,
            "step": identity.step,
            "array_job_id": identity.array_job_id,
            "array_index": identity.array_index,
            "nodes": list(identity.nodes or (identity.host,)),
            "launcher": options.launcher,
            "command": options.told_command or None,
            "started": _now(),
            "ended": None,
            "exit_code": None,
            "reason": None,
            "time_limit_s": identity.time_limit_s,
            "memory_limit_bytes": identity.memory_limit_bytes,
            "cpus": identity.cpus,
            "gpus": None if identity.gpus is None else list(identity.gpus),
        }

    def document(self, measuring: Pipeline) -> dict[str, Any]:
        """Return everything that is known now."""
        return {
            "hostname": self._identity.host,
            "labels": dict(self._options.labels),
            "streams": measuring.streams,
            "metrics": measuring.sampler.metrics(),
            "capabilities": measuring.sampler.capabilities(),
            "hardware": measuring.hardware(),
            "jobs": {self._identity.key: self.job},
            "tool": {
                "version": __version__,
                "interval_s": self._options.sampling_freq,
                "check_point_s": self._options.check_point,
                "clock_offset_s": self._clock_offset_s,
                "options": self._options.told(),
                **self.lost,
            },
        }

    def tell(self, document: Mapping[str, Any], *, mark: str = "") -> bool:
        """Write a description, and what happened; False when that was not possible, which is logged once."""
        try:
            with Recording(self._recording) as recording:
                recording.describe(self._node_id, self._boot, document)
                if mark:
                    recording.mark(self._node_id, self._boot, HOST, utc_now().timestamp(), mark)
        except StorageError as error:
            if not self._problem:
                logger.error("what is known of the job waits to be written: %s", error)  # noqa: TRY400
            self._problem = str(error)
            return False
        self._problem = ""
        return True

    def began(self, t: float) -> None:
        """Take note of when the job's command was started, in Unix seconds."""
        self.job |= {"started": _moment(datetime.fromtimestamp(t, UTC))}

    def ended(self, end: End) -> None:
        """Take note of the end."""
        self.job |= {"ended": _now(), "exit_code": end.exit_code, "reason": end.reason}


def _now() -> str:
    return _moment(utc_now())


def _moment(t: datetime) -> str:
    return t.isoformat(timespec="milliseconds")
