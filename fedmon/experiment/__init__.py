"""Experiments over the federation: resources with states, conditions between them, and a controller that explains.

The names are those of NEPI's ExperimentController, so that its scripts port. Each is loaded when it is first used; the
types of all are in ``__init__.pyi``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

_MODULES = {
    "fedmon.experiment.attributes": ("Attribute", "Flags", "Trace", "TraceAttr", "Types"),
    "fedmon.experiment.conditions": ("Metric",),
    "fedmon.experiment.controller": ("ExperimentController",),
    "fedmon.experiment.document.files": ("SFormats",),
    "fedmon.experiment.check.diagram": ("PFormats",),
    "fedmon.experiment.errors": ("ExperimentError",),
    "fedmon.experiment.events": ("Retry",),
    "fedmon.experiment.factory": ("ResourceFactory", "populate_factory"),
    "fedmon.experiment.failure": ("FailureManager", "OptionalFailures", "QuorumFailures"),
    "fedmon.experiment.resource": ("ResourceManager", "clsinit", "clsinit_copy", "failtrap"),
    "fedmon.experiment.states": (
        "ECState", "FailureLevel", "ResourceAction", "ResourceState", "ResourceState2str", "TaskStatus"
    ),
    "fedmon.experiment.types.collector": ("Collector",),
    "fedmon.experiment.engine": ("WaitResult",),
    "fedmon.compat.nepi.parallel": ("ParallelRun",),
    "fedmon.compat.nepi.runner": ("ExperimentRunner",),
    "fedmon.compat.nepi.scheduler": ("HeapScheduler", "Task"),
    "fedmon.compat.nepi.topology": ("NetGraph", "TopologyType"),
    # By `nepi`, without a name of their own.
    "fedmon.compat.nepi.environment": (), "fedmon.compat.nepi.tags": (), "fedmon.compat.nepi.xml_files": (),
}  # fmt: skip
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Attribute", "Collector", "ECState", "ExperimentController", "ExperimentError", "ExperimentRunner", "FailureLevel",
    "FailureManager", "Flags", "HeapScheduler", "Metric", "NetGraph", "OptionalFailures", "PFormats", "ParallelRun",
    "QuorumFailures", "ResourceAction", "ResourceFactory", "ResourceManager", "ResourceState", "ResourceState2str",
    "Retry", "SFormats", "Task", "TaskStatus", "TopologyType", "Trace", "TraceAttr", "Types", "WaitResult", "clsinit",
    "clsinit_copy", "failtrap", "populate_factory", "tags",
]  # fmt: skip


def nepi(module: str) -> ModuleType:
    """Load a module of `fedmon.compat.nepi`: by name, since that package stands above this one."""
    return importlib.import_module(f"fedmon.compat.nepi.{module}")


def __getattr__(name: str) -> Any:
    if name == "tags":
        return nepi(name)
    if name not in _PLACES:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
