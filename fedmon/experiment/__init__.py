"""Experiments over the federation: resources with states, conditions between them, and a controller that explains.

The names are those of NEPI's ExperimentController, so that its scripts port. Each is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmon.experiment import tags
    from fedmon.experiment.attributes import Attribute, Flags, Types
    from fedmon.experiment.check.diagram import PFormats
    from fedmon.experiment.conditions import Metric
    from fedmon.experiment.controller import ExperimentController
    from fedmon.experiment.document.files import SFormats
    from fedmon.experiment.errors import ExperimentError
    from fedmon.experiment.events import Retry
    from fedmon.experiment.factory import ResourceFactory, populate_factory
    from fedmon.experiment.failure import FailureManager, OptionalFailures, QuorumFailures
    from fedmon.experiment.parallel import ParallelRun
    from fedmon.experiment.resource import ResourceManager, clsinit, clsinit_copy, failtrap
    from fedmon.experiment.runner import ExperimentRunner
    from fedmon.experiment.scheduler import HeapScheduler, Task
    from fedmon.experiment.shapes import TopologyType
    from fedmon.experiment.states import (
        ECState,
        FailureLevel,
        ResourceAction,
        ResourceState,
        ResourceState2str,
        TaskStatus,
    )
    from fedmon.experiment.topology import NetGraph
    from fedmon.experiment.traces import Trace, TraceAttr
    from fedmon.experiment.types.collector import Collector
    from fedmon.experiment.waits import WaitResult

_MODULES = {
    "attributes": ("Attribute", "Flags", "Types"),
    "conditions": ("Metric",),
    "controller": ("ExperimentController",),
    "document.files": ("SFormats",),
    "check.diagram": ("PFormats",),
    "errors": ("ExperimentError",),
    "events": ("Retry",),
    "failure": ("FailureManager", "OptionalFailures", "QuorumFailures"),
    "types.collector": ("Collector",),
    "parallel": ("ParallelRun",),
    "resource": ("ResourceManager", "clsinit", "clsinit_copy", "failtrap"),
    "runner": ("ExperimentRunner",),
    "scheduler": ("HeapScheduler", "Task"),
    "shapes": ("TopologyType",),
    "states": ("ECState", "FailureLevel", "ResourceAction", "ResourceState", "ResourceState2str", "TaskStatus"),
    "topology": ("NetGraph",),
    "traces": ("Trace", "TraceAttr"),
    "factory": ("ResourceFactory", "populate_factory"),
    "waits": ("WaitResult",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Attribute", "Collector", "ECState", "ExperimentController", "ExperimentError", "ExperimentRunner", "FailureLevel",
    "FailureManager", "Flags", "HeapScheduler", "Metric", "NetGraph", "OptionalFailures", "PFormats", "ParallelRun",
    "QuorumFailures", "ResourceAction", "ResourceFactory", "ResourceManager", "ResourceState", "ResourceState2str",
    "Retry", "SFormats", "Task", "TaskStatus", "TopologyType", "Trace", "TraceAttr", "Types", "WaitResult", "clsinit",
    "clsinit_copy", "failtrap", "populate_factory", "tags",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "tags":
        return importlib.import_module(f"{__name__}.tags")
    if name not in _PLACES:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
