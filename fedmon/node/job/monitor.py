"""The measuring of one job and its host, from the first sample to the last."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon import __version__
from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.ids import JOB_PREFIX
from fedmon.common.settings.broker import BrokerSettings, broker_from_url
from fedmon.common.settings.values import MetricsSettings, NodeSettings, PerfSettings, PolicySettings, RecordingSettings
from fedmon.common.store.recording import Recording
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Monitor
from fedmon.node.cgroup import remove_cgroup
from fedmon.node.collectors.job.cgroup import JobCgroup
from fedmon.node.job.end import LOOK_S, NEAR, End, latest_end
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.options import JobOptions
from fedmon.node.job.processes import is_overhead_now
from fedmon.node.job.wrapper import Channel
from fedmon.node.measure.jobs import MARKER
from fedmon.node.measure.leases import LeaseTable
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.measure.publisher import HOST_STREAM
from fedmon.node.measure.recorder import BUFFERED, DROPPED_FULL

if TYPE_CHECKING:
    from fedmon.node.job.finders import Found, JobSearch

MAX_BYTES, MAX_AGE_S = 2**40, 315_360_000.0
ALL_GONE = "all processes of the job have ended"
_STOP_WITHIN_S = 10.0
_DESCRIBE_EVERY_S = 60.0
_LOOK_AGAIN_S = 2.0
"""Longest pause between two looks for the job; each reads about all processes of the machine."""
BACKLOG = 60
"""Batches that wait for the broker; older ones are in the recording, and sent on request."""
ENDED = "the run of the job ended"
_OPEN_WITHIN_S = 5.0
_QUIET_S, _PULL_WITHIN_S = 5.0, 10.0
"""A researcher pauses for 1 s between an answer and its next question, and may be late under load."""
_CLOSE_WITHIN_S = 0.5

logger = logging.getLogger(__name__)


class JobMonitor:
    """Samples one host and one job on it into the recording of ``members``; for the main thread of the tool.

    ``channel`` is that of the command, if there is one. ``early_end`` is set if there is nothing to wait for,
    ``problem`` if the job is not measured.
    """

    def __init__(
        self,
        options: JobOptions,
        identity: JobIdentity,
        *,
        members: Membership,
        environ: Mapping[str, str],
        channel: Channel,
    ) -> None:
        self._options, self._identity, self._environ = options, identity, environ
        self._members, self._channel = members, channel
        self._search: JobSearch | None = None
        self._look_at, self._pauses = 0.0, Backoff(LOOK_S / 2, longest_s=_LOOK_AGAIN_S)
        self._is_watched = False
        self._gpus: list[dict[str, Any]] = []
        self.counts_events = shutil.which("perf") is not None
        self._pipeline = Pipeline(
            NodeSettings(
                id=members.node_id,
                broker=options.broker or broker_from_url("mqtt://localhost"),
                metrics=MetricsSettings(interval_s=options.interval),
                recording=RecordingSettings(max_bytes=MAX_BYTES, max_age_s=MAX_AGE_S),
                perf=PerfSettings(enabled=self.counts_events, interval_s=min(60.0, max(0.2, options.interval))),
            ),
            boot=members.boot,
            recording_file=members.recording,
            send=lambda payload: self._stream is None or self._stream.send(payload),
            leaves=lambda _metric: self._stream is not None,
            hold_s=options.hold_s,
        )
        self._stream: JobStream | None = None
        if options.broker is not None:
            self._stream = JobStream(options.broker, self._pipeline, members.node_id)
        self._job = _first_description(identity, options)
        self._describe_at = 0.0
        self._ends_at = latest_end(identity, first_start=None)
        self._cgroup: JobCgroup | None = None
        self.early_end: End | None = None
        self.problem: FedmonError | None = None

    def start(self) -> None:
        """Take the first sample, also of the job."""
        if self._options.command:
            # The command runs already, and the first tick must have both.
            self._watch_command()
            self._pipeline.start()
        else:
            from fedmon.node.job.finders import JobSearch

            self._pipeline.start()
            self._search = JobSearch(
                self._identity, environ=self._environ, pids=self._options.pids, exclude=(os.getpid(),)
            )
            self._look(self._search)
        if self._stream is not None:
            self._stream.start()
        self._pipeline.follow(self._options.interval, live=True)
        self._gpus = self._pipeline.hardware()["gpus"]

    def look_after(self) -> End | None:
        """Do periodic work, about once a second; return why to end, if the job has no more processes or time."""
        if time.time() >= self._ends_at:
            return End(reason=NEAR)
        self._pipeline.follow(self._options.interval, live=True)
        if (gpus := self._pipeline.hardware()["gpus"]) != self._gpus:  # NVML can take seconds to start
            self._gpus = gpus
            self._pipeline.sampler.sample_now()
        if time.monotonic() >= self._describe_at:
            self.describe()
            # Loaded while the job runs: its caller would wait for that at the end.
            importlib.import_module("fedmon.node.job.merge")
        if self._search is None:
            return self.early_end
        pids = self._pipeline.jobs.pids().get(self._identity.key)
        if pids is None:
            if self._is_watched and not self._search.goes_on:
                return End(reason=ALL_GONE)
            if self._is_watched:
                logger.info("%s, and it is looked for again until the run is ended", ALL_GONE)
            self._is_watched = False
            if self.early_end is None and time.monotonic() >= self._look_at:
                self._look(self._search)
        elif pids and not any(Path(f"/proc/{pid}").exists() for pid in pids):
            # The next sample tells whether there are new ones, and that may be far away.
            self._pipeline.sampler.sample_now()
        return self.early_end

    def describe(self) -> dict[str, Any]:
        """Write the present description into the recording, and return it."""
        self._describe_at = time.monotonic() + _DESCRIBE_EVERY_S
        self._write(document := self._document())
        return document

    def finish(self, end: End) -> int:
        """Take the last sample and write everything; return the number of lost samples."""
        if self._search is not None and "method" not in self._job and self.early_end is None:
            self._look(self._search, is_last=True)
        self._job |= {"ended": _moment(utc_now()), "exit_code": end.exit_code, "reason": end.reason}
        document = self._document()
        self._pipeline.jobs.command_ended(self._identity.key, end.switches)
        self._pipeline.stop(_STOP_WITHIN_S, last_sample=True)
        if self._stream is not None:
            self._stream.complete()
        counts = self._pipeline.counts()
        lost = int(counts.get(DROPPED_FULL, 0) + counts.get(BUFFERED, 0))
        document["tool"] |= {"samples_lost": lost} if lost else {}
        left = len(self._pipeline.jobs.pids().get(self._identity.key, ()))
        if left and end.exit_code is not None:
            # A shell does not wait for background processes, nor do we.
            logger.warning("%d processes of the command continue without it, and are no longer measured", left)
        if self._options.command and self._channel.is_closed and self._cgroup is not None:
            remove_cgroup(self._cgroup.folders.values())  # its maker was killed
        self._write(document, mark=f"the run ended: {end.reason}")
        return lost

    def close(self) -> None:
        """Wait until researchers have the last samples; without a connection it does not wait."""
        if self._stream is not None:
            self._stream.stop()

    # --- the job -----------------------------------------------------------------------------------------------------

    def _watch_command(self) -> None:
        begun = self._channel.listen(None)
        if begun is None or begun.kind != "started":
            why, code = ("its parent was killed", None) if begun is None else (begun.text, begun.code)
            self.early_end = End(reason=f"the command could not be started: {why}", exit_code=code)
            return
        cgroup = JobCgroup(path=begun.path, folders={name: Path(folder) for name, folder in begun.folders.items()})
        self._job |= {
            "started": _moment(datetime.fromtimestamp(begun.t, UTC)),
            "method": "command",
            "confidence": "certain",
            "pids": [begun.pid],
            "cgroup": cgroup.path or None,
        }
        try:
            if cgroup.folders:
                self._cgroup = cgroup
                self._pipeline.jobs.add(self._identity.key, cgroup=cgroup, is_command=True)
            else:
                marker = f"{MARKER}={self._environ.get(MARKER, self._identity.key)}"  # as the command was started
                self._pipeline.jobs.add(
                    self._identity.key, pids=[begun.pid], exclude=(os.getpid(),), marker=marker, is_command=True
                )
        except FedmonError as error:  # it ended before it could be read
            logger.warning("the command is not measured: %s", error)

    def _look(self, search: JobSearch, *, is_last: bool = False) -> None:
        """Look for the job once, and watch it if it is found."""
        try:
            self._watch(search.find(is_last=is_last))
        except FedmonError as error:
            self._look_at = time.monotonic() + self._pauses.next_s()
            if "method" in self._job:  # between two steps
                return
            if self.problem is None:
                logger.warning("the job is not measured%s, only its host: %s", " yet" if search.goes_on else "", error)
            self.problem = error
            if not search.goes_on:
                self.early_end = End(reason=str(error))
            return
        self.problem, self._is_watched = None, True
        self._describe_at = 0.0
        self._pauses.reset()
        self._pipeline.sampler.sample_now()

    def _watch(self, found: Found) -> None:
        for method, why in found.tried:
            logger.info("the job was not found by %s: %s", method, why)
        self._pipeline.jobs.add(
            self._identity.key, pids=found.pids, cgroup=found.cgroup, marker=found.marker, starts=found.starts,
            exclude=(os.getpid(),), overhead=found.overhead, is_overhead_now=is_overhead_now,
        )  # fmt: skip
        logger.info(
            "the job was found by %s (confidence %s): %s; processes: %d",
            found.method, found.confidence.value, found.detail, len(found.pids),
        )  # fmt: skip
        self._job |= {
            "method": found.method,
            "confidence": found.confidence.value,
            "pids": list(found.pids),
            "cgroup": found.cgroup,
        }
        first_start = min(found.starts.values(), default=None)
        self._ends_at = min(self._ends_at, latest_end(self._identity, first_start=first_start))

    # --- the description ---------------------------------------------------------------------------------------------

    def _document(self) -> dict[str, Any]:
        return {
            "hostname": self._identity.host,
            "labels": dict(self._options.labels),
            "streams": self._pipeline.streams,
            "metrics": self._pipeline.sampler.metrics(),
            "capabilities": self._pipeline.sampler.capabilities(),
            "hardware": self._pipeline.hardware(),
            "jobs": {self._identity.key: self._job},
            "tool": {
                "version": __version__,
                "interval_s": self._options.interval,
                "clock_offset_s": self._members.clock_offset_s,
                "options": self._options.document(),
            },
        }

    def _write(self, document: Mapping[str, Any], *, mark: str = "") -> None:
        """Write a description, and a mark; a failure is logged."""
        node_id, boot = self._members.node_id, self._members.boot
        try:
            with Recording(self._members.recording) as recording:
                recording.describe(node_id, boot, document)
                if mark:
                    recording.mark(node_id, boot, HOST_STREAM, utc_now().timestamp(), mark)
        except StorageError as error:
            logger.warning("the description of the job is not written: %s", error)


def _first_description(identity: JobIdentity, options: JobOptions) -> dict[str, Any]:
    known = ("job_id", "host", "scheduler", "cluster", "user", "step", "array_job_id", "array_index", "starts_at",
            "time_limit_s", "memory_limit_bytes", "cpus")  # fmt: skip
    return {
        **{name: getattr(identity, name) for name in known},
        "name": identity.name or options.labels.get("name"),
        "nodes": list(identity.nodes or (identity.host,)),
        "launcher": options.launcher,
        "command": options.printable_command or None,
        "started": _moment(utc_now()),
        "ended": None,
        "exit_code": None,
        "reason": None,
        "gpus": None if identity.gpus is None else list(identity.gpus),
    }


def _moment(t: datetime) -> str:
    return t.isoformat(timespec="milliseconds")


# --- live ------------------------------------------------------------------------------------------------------------


class JobStream:
    """Streams the samples of one run to a broker, under an id that no other run has.

    `start`, `complete` and `stop` belong to one thread, `send` is safe from any. Samples, hardware and counts leave;
    nothing of the job's command does.
    """

    def __init__(self, broker: BrokerSettings, pipeline: Pipeline, node_id: str) -> None:
        from fedmon.node.broker_link import BrokerLink  # loads MQTT
        from fedmon.node.requests.monitor import MonitorHandler
        from fedmon.node.requests.policy import Policy

        self._broker, self._pipeline, self._node_id = broker, pipeline, node_id
        policy, interval_s = Policy(PolicySettings(), node_id), pipeline.sampler.interval_s
        self._leases = LeaseTable(default_interval_s=interval_s, min_interval_s=interval_s)
        self._handler = MonitorHandler(self._leases, pipeline, policy, lambda _names, _samples: None)
        self._pulling: Deadline | None = None
        self._asked_at = float("-inf")
        self._link = BrokerLink(
            broker,
            node_id=node_id,
            boot=pipeline.boot,
            streams=lambda: pipeline.streams,
            monitor=self._monitor,
            backlog=BACKLOG,
            # The access list of a broker with users makes "job-" and this its name in topics: all jobs may share one
            # user, and none speaks for a node.
            client_id=node_id.removeprefix(JOB_PREFIX) if broker.username else None,
        )
        self.send = self._link.send

    def start(self) -> None:
        """Begin to connect, and answer for the pipeline; returns at once."""
        self._pipeline.hardware()  # read once, before other threads ask
        self._opening = Deadline(_OPEN_WITHIN_S)
        self._link.start()
        logger.info("samples are streamed to %s as node %s", self._broker.url, self._node_id)

    def complete(self) -> None:
        """Have researchers with a lease ask once more for the list of samples; the recording is complete."""
        self._asked_at = time.monotonic()
        if self._link.is_connected and self._leases.held():
            self._pulling = Deadline(_PULL_WITHIN_S)
            self._link.announce()

    def stop(self) -> None:
        """Wait until researchers with a lease have pulled missed samples, and say farewell.

        Without a connection or a lease it does not wait.
        """
        tick = threading.Event()
        while self._pulling is not None and self._link.is_connected and not self._pulling.passed():
            if not self._leases.held() or time.monotonic() - self._asked_at >= _QUIET_S:
                break
            tick.wait(0.02)
        self._link.stop(_CLOSE_WITHIN_S, reason=ENDED)
        if self._link.dropped:
            logger.warning("%d batches did not reach the broker; all samples are recorded", self._link.dropped)

    # --- on the link's thread ----------------------------------------------------------------------------------------

    def _monitor(self, request: Monitor) -> Reply:
        self._asked_at = time.monotonic()
        recorder, tick = self._pipeline.recorder, threading.Event()
        while recorder is not None and not recorder.ready and not self._opening.passed():
            tick.wait(0.02)  # a researcher that is refused asks again after a second, and a job may be shorter
        interval_s = self._pipeline.sampler.interval_s  # no lease changes it
        self._leases.set_limits(default_interval_s=interval_s, min_interval_s=interval_s)
        reply = self._handler(request)
        self._asked_at = time.monotonic()
        return reply
