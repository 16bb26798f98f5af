"""Figures of what programs report of themselves, and of what measuring costs."""

from __future__ import annotations

from fedmon.report.plots.figure import Figure, Group, Join, Quantity

USER: tuple[Figure, ...] = (
    Figure(
        name="reported",
        group=Group.USER,
        title="Reported",
        lines={"user_value": ""},
        keep=("job",),
        each="name",
        is_event=True,
    ),
    Figure(
        name="reported_by_step",
        group=Group.USER,
        title="Reported",
        lines={"user_value": ""},
        limits={"user_step": ""},
        keep=("job",),
        each="name",
        is_event=True,
        over_step=True,
        over=None,
    ),
    Figure(
        name="reported_dropped",
        group=Group.USER,
        title="Reported values that came too fast",
        lines={"user_values_dropped_total": "dropped"},
        over=Join.TOTAL,
        noun="values/s",
        is_event=True,
        quiet=True,
    ),
)

AGENT: tuple[Figure, ...] = (
    Figure(
        name="agent_cpu",
        group=Group.AGENT,
        title="CPU time of the measuring itself",
        lines={"agent_cpu_seconds_total": "process", "agent_collect_cpu_seconds_total": "sampling"},
        noun="% of one CPU",
    ),
    Figure(
        name="agent_memory",
        group=Group.AGENT,
        title="Memory of the measuring process",
        lines={"agent_memory_rss_bytes": "resident"},
    ),
    Figure(
        name="agent_collect",
        group=Group.AGENT,
        title="Time to take a sample",
        lines={"agent_collect_seconds": "all collectors"},
    ),
    Figure(
        name="agent_collectors",
        group=Group.AGENT,
        title="Time of each collector",
        lines={"agent_collector_seconds": ""},
        split=True,
        over=None,
    ),
    Figure(
        name="agent_interval",
        group=Group.AGENT,
        title="Distance of samples",
        lines={"agent_interval_seconds": "interval"},
    ),
    Figure(
        name="agent_samples",
        group=Group.AGENT,
        title="Samples sent and stored",
        lines={"agent_samples_published_total": "sent", "agent_samples_recorded_total": "stored"},
        over=Join.TOTAL,
        noun="samples/s",
    ),
    Figure(
        name="agent_losses",
        group=Group.AGENT,
        title="Samples and ticks that were left out",
        lines={
            "agent_ticks_missed_total": "ticks missed",
            "agent_samples_dropped_total": "not sent at once",
            "agent_recording_samples_dropped_total": "not stored",
            "agent_recording_samples_expired_total": "expired",
        },
        over=Join.TOTAL,
        noun="samples/s",
        quiet=True,
    ),
    Figure(
        name="agent_buffered",
        group=Group.AGENT,
        title="Samples that wait to be stored",
        lines={"agent_recording_samples_buffered": "buffered"},
        over=Join.TOTAL,
        noun="samples",
    ),
    Figure(
        name="agent_recording",
        group=Group.AGENT,
        title="Size of the recording",
        lines={"agent_recording_size_bytes": "on the disk"},
        over=Join.TOTAL,
        quantity=Quantity.BYTES,
    ),
)
