"""What a recording says of its job, host and tool beside the samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmon import __version__
from fedmon.common.clock import utc_now
from fedmon.common.errors import StorageError
from fedmon.common.store.recording import Recording
from fedmon.node.job.ending import End
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.options import JobOptions
from fedmon.node.measure.pipeline import Pipeline

logger = logging.getLogger(__name__)

HOST = "host"


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
