"""Which events each micro-architecture has, and what follows from them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from fedmon.node.perf.event import Architecture

_MODULES: Mapping[str, str] = {
    "sandybridge": "intel_bridges",
    "ivybridge": "intel_bridges",
    "haswell": "intel_wells",
    "broadwell": "intel_wells",
    "skylake": "intel_lakes",
    "skylake_x": "intel_lakes",
    "icelake": "intel_lakes",
    "icelake_x": "intel_lakes",
    "zen": "amd_zen",
    "zen2": "amd_zen",
    "zen3": "amd_zen",
}
NAMES = tuple(_MODULES)
"""The micro-architectures that have a table; the server line of one ends in ``_x`` where it counts otherwise."""


def architecture(name: str) -> Architecture | None:
    """Return the table of a micro-architecture; only that one is loaded."""
    if name not in _MODULES:
        return None
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    found: Mapping[str, Architecture] = module.ARCHITECTURES
    return found[name]
