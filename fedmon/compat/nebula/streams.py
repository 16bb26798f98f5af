"""What a reporter measures where nothing else is asked for."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from fedmon.common.errors import FedmonError
from fedmon.node.collectors.base import THIS_MACHINE, Collector
from fedmon.node.measure.publisher import HOST_STREAM

logger = logging.getLogger(__name__)


def reporter_streams(job: str) -> dict[str, Sequence[Collector]]:
    """Return the machine as a whole with its GPUs, and under ``job`` this process with all that descends from it."""
    # Loaded with the first start: a program that only imports the reporter pays nothing.
    from fedmon.node.collectors import host_collectors
    from fedmon.node.collectors.job.making import JobMaker
    from fedmon.node.collectors.nvml import nvml_collectors, open_session

    streams: dict[str, Sequence[Collector]] = {HOST_STREAM: [*nvml_collectors(open_session()), *host_collectors()]}
    try:
        watching = JobMaker(THIS_MACHINE).make(
            pids=[os.getpid()], cgroup=None, marker=f"FEDMON_REPORTER={os.getpid()}", mono=time.monotonic()
        )
        streams[job] = watching.collectors
    except FedmonError as error:
        logger.warning("the processes of this program are not measured: %s", error)
    return streams
