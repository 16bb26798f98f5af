"""Collectors read this machine; nothing else of the node does.

``host_collectors`` gives those of the stream ``host``: from /proc and /sys where they are, else through psutil.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmon.node.collectors.host import host_collectors, needs_psutil

__all__ = ["host_collectors", "needs_psutil"]


def __getattr__(name: str) -> object:
    """Import the collectors on their first use: much needs but one of these modules, and a job waits for each."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fedmon.node.collectors.host"), name)
