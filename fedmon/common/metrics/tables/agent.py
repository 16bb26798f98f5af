"""What watching itself costs."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

ROWS: list[Metric] = [
    *rows(
        "CLOCK_PROCESS_CPUTIME_ID",
        Unit.SECONDS,
        {"agent_cpu_seconds_total": "CPU time of this node's own process, user and system, without its children."},
    ),
    *rows(
        "/proc/self/statm",
        Unit.BYTES,
        {"agent_memory_rss_bytes": "Resident memory of this node's own process."},
    ),
    *rows(
        "the sampler",
        Unit.SECONDS,
        {
            "agent_collect_seconds": "Time that all collectors together took for the previous sample.",
            "agent_collect_cpu_seconds_total": "CPU time of the sampling thread: collecting, batching, handing over.",
            "agent_interval_seconds": "Distance of two samples now; more than asked for while sampling costs too much.",
        },
    ),
    *rows(
        "the sampler",
        Unit.SECONDS,
        {"agent_collector_seconds": "Time that one collector took for its last reading."},
        labels=("stream", "collector"),
    ),
    *rows(
        "the sampler",
        Unit.COUNT,
        {"agent_ticks_missed_total": "Ticks of the sampling grid that were left out because sampling came too late."},
    ),
    *rows(
        "the publisher",
        Unit.COUNT,
        {
            "agent_samples_published_total": "Samples handed to the connection with the broker.",
            "agent_samples_dropped_total": "Samples that were not sent when they were taken, for want of a"
            " connection; the recording keeps them.",
        },
    ),
    *rows(
        "the recorder",
        Unit.COUNT,
        {
            "agent_samples_recorded_total": "Samples stored in this node's recording since its start.",
            "agent_recording_samples_dropped_total": "Samples that were not stored, because the disk was full or failed"
            " for too long.",
            "agent_recording_samples_expired_total": "Samples dropped from the recording, the oldest first, by its"
            " bounds of size and age, or given up as damaged, since it was begun.",
            "agent_recording_samples_buffered": "Samples that wait to be stored.",
        },
    ),
    *rows("the recorder", Unit.BYTES, {"agent_recording_size_bytes": "What the recording takes on the disk."}),
]
