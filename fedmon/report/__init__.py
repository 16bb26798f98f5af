"""Tables, exports, plots and reports of recordings; needs the extra `fedmon[report]`.

In a notebook::

    from fedmon.report import frame, plot, save, write_report

    table = frame("job-metrics-4711", metrics=["host_cpu_*"])
    save("job-metrics-4711", "cpu.parquet", metrics=["host_cpu_*"])
    plot("job-metrics-4711", "plots", metrics=["host_cpu_*"])
    write_report("job-metrics-4711", html="report.html")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from fedmon.report.document.report import write as write_report
    from fedmon.report.frames import LearningCurves, TidyTable, WideTable, frame, learning_curves, plot, save
    from fedmon.report.source import Source

__all__ = [
    "LearningCurves", "Source", "TidyTable", "WideTable", "frame", "learning_curves", "plot", "save", "write_report",
]  # fmt: skip

_LAZY = {
    **{name: ("fedmon.report.frames", name) for name in __all__},
    "Source": ("fedmon.report.source", "Source"),
    "write_report": ("fedmon.report.document.report", "write"),
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use: numpy and pyarrow take a while."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    with report_extra("a report"):
        return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
