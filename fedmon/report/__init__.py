"""What recordings say: tables, exports, plots and reports; needs the extra `fedmon[report]`.

In a notebook::

    from fedmon.report import Source, frame, plot, save

    with Source(["job-metrics-4711/4711.fmr"]) as source:
        table = frame(source, metrics=["host_cpu_*"])
        save(source, "cpu.parquet", metrics=["host_cpu_*"])
        plot(source, "plots", metrics=["host_cpu_*"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmon.report.drawing import plot
    from fedmon.report.frames import TidyTable, WideTable, frame
    from fedmon.report.saving import save
    from fedmon.report.source import Source

__all__ = ["Source", "TidyTable", "WideTable", "frame", "plot", "save"]

_LAZY = {
    "Source": "fedmon.report.source",
    "TidyTable": "fedmon.report.frames",
    "WideTable": "fedmon.report.frames",
    "frame": "fedmon.report.frames",
    "plot": "fedmon.report.drawing",
    "save": "fedmon.report.saving",
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use: numpy and pyarrow take a while."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
