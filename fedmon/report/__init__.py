"""What recordings say: tables, exports, plots and reports; needs the extra `fedmon[report]`.

In a notebook::

    from fedmon.report import Source, export, frame

    with Source(["job-metrics-4711/4711.fmr"]) as source:
        table = frame(source, metrics=["host_cpu_*"])
        export(source, "cpu.parquet", metrics=["host_cpu_*"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmon.report.exporting import export
    from fedmon.report.frame import TidyTable, WideTable, frame
    from fedmon.report.source import Source

__all__ = ["Source", "TidyTable", "WideTable", "export", "frame"]

_LAZY = {
    "Source": ("fedmon.report.source", "Source"),
    "TidyTable": ("fedmon.report.frame", "TidyTable"),
    "WideTable": ("fedmon.report.frame", "WideTable"),
    "export": ("fedmon.report.exporting", "export"),
    "frame": ("fedmon.report.frame", "frame"),
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use: numpy and pyarrow take a while."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
