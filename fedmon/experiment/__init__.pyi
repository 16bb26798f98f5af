from types import ModuleType

from fedmon.compat.nepi import tags
from fedmon.compat.nepi.parallel import ParallelRun
from fedmon.compat.nepi.runner import ExperimentRunner
from fedmon.compat.nepi.scheduler import HeapScheduler, Task
from fedmon.compat.nepi.topology import NetGraph, TopologyType
from fedmon.experiment.attributes import Attribute, Flags, Trace, TraceAttr, Types
from fedmon.experiment.check.diagram import PFormats
from fedmon.experiment.conditions import Metric
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.document.files import SFormats
from fedmon.experiment.engine import WaitResult
from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.events import Retry
from fedmon.experiment.factory import ResourceFactory, populate_factory
from fedmon.experiment.failure import FailureManager, OptionalFailures, QuorumFailures
from fedmon.experiment.resource import ResourceManager, clsinit, clsinit_copy, failtrap
from fedmon.experiment.states import ECState, FailureLevel, ResourceAction, ResourceState, ResourceState2str, TaskStatus
from fedmon.experiment.types.collector import Collector

__all__ = [
    "Attribute", "Collector", "ECState", "ExperimentController", "ExperimentError", "ExperimentRunner", "FailureLevel",
    "FailureManager", "Flags", "HeapScheduler", "Metric", "NetGraph", "OptionalFailures", "PFormats", "ParallelRun",
    "QuorumFailures", "ResourceAction", "ResourceFactory", "ResourceManager", "ResourceState", "ResourceState2str",
    "Retry", "SFormats", "Task", "TaskStatus", "TopologyType", "Trace", "TraceAttr", "Types", "WaitResult", "clsinit",
    "clsinit_copy", "failtrap", "populate_factory", "tags",
]  # fmt: skip

def nepi(module: str) -> ModuleType: ...
