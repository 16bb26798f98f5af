"""Counters of a job that was measured from its begin on: what they showed at their first reading is the job's, too."""

from __future__ import annotations

import msgspec

from fedmon.report.totals import SeriesTotal, StreamTotal

COMMAND = "command"
"""How a job was found that the tool itself started: nothing of it was there before."""
_OF_THE_TOOL = ("job_energy_", "job_emissions_")
"""Counters that begin with the measuring, and not with the job's processes."""


def from_begin(job: StreamTotal, started_t: float) -> StreamTotal:
    """Return the totals of a job's stream with counters that grew from 0 since ``started_t``, in Unix seconds.

    As they are where a clock was set meanwhile: then no two times can be compared.
    """
    if job.clock_steps:
        return job
    return msgspec.structs.replace(
        job,
        series={name: _whole(total, started_t) if _begins(name) else total for name, total in job.series.items()},
    )


def _begins(name: str) -> bool:
    return name.startswith("job_") and "_total" in name and not name.startswith(_OF_THE_TOOL)


def _whole(total: SeriesTotal, started_t: float) -> SeriesTotal:
    before_s = total.first_t - started_t
    if before_s <= 0:
        return total
    return msgspec.structs.replace(
        total, increase=(total.increase or 0.0) + total.first, grown_s=total.grown_s + before_s
    )
