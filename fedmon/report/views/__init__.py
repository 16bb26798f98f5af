"""Recordings in the words of other tools: the same measurements under historic names and units.

`VIEWS` maps the name of a view to the function that makes its tables of a source and a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedmon.report.export import Table
from fedmon.report.source import Source
from fedmon.report.views import nebula, perfmon

__all__ = ["VIEWS", "nebula", "perfmon"]

VIEWS: Mapping[str, Callable[[Source, str | None], list[Table]]] = {
    "perfmon": perfmon.tables,
    "nebula": nebula.tables,
}
