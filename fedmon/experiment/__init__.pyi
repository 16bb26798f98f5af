from types import ModuleType

from fedmon.compat.nepi import tags as tags
from fedmon.compat.nepi.parallel import ParallelRun as ParallelRun
from fedmon.compat.nepi.runner import ExperimentRunner as ExperimentRunner
from fedmon.compat.nepi.scheduler import HeapScheduler as HeapScheduler
from fedmon.compat.nepi.scheduler import Task as Task
from fedmon.compat.nepi.topology import NetGraph as NetGraph
from fedmon.compat.nepi.topology import TopologyType as TopologyType
from fedmon.experiment.attributes import Attribute as Attribute
from fedmon.experiment.attributes import Flags as Flags
from fedmon.experiment.attributes import Types as Types
from fedmon.experiment.check.diagram import PFormats as PFormats
from fedmon.experiment.conditions import Metric as Metric
from fedmon.experiment.controller import ExperimentController as ExperimentController
from fedmon.experiment.document.files import SFormats as SFormats
from fedmon.experiment.engine import WaitResult as WaitResult
from fedmon.experiment.errors import ExperimentError as ExperimentError
from fedmon.experiment.events import Retry as Retry
from fedmon.experiment.factory import ResourceFactory as ResourceFactory
from fedmon.experiment.factory import populate_factory as populate_factory
from fedmon.experiment.failure import FailureManager as FailureManager
from fedmon.experiment.failure import OptionalFailures as OptionalFailures
from fedmon.experiment.failure import QuorumFailures as QuorumFailures
from fedmon.experiment.resource import ResourceManager as ResourceManager
from fedmon.experiment.resource import clsinit as clsinit
from fedmon.experiment.resource import clsinit_copy as clsinit_copy
from fedmon.experiment.resource import failtrap as failtrap
from fedmon.experiment.states import ECState as ECState
from fedmon.experiment.states import FailureLevel as FailureLevel
from fedmon.experiment.states import ResourceAction as ResourceAction
from fedmon.experiment.states import ResourceState as ResourceState
from fedmon.experiment.states import ResourceState2str as ResourceState2str
from fedmon.experiment.states import TaskStatus as TaskStatus
from fedmon.experiment.traces import Trace as Trace
from fedmon.experiment.traces import TraceAttr as TraceAttr
from fedmon.experiment.types.collector import Collector as Collector

__all__ = [
    "Attribute", "Collector", "ECState", "ExperimentController", "ExperimentError", "ExperimentRunner", "FailureLevel",
    "FailureManager", "Flags", "HeapScheduler", "Metric", "NetGraph", "OptionalFailures", "PFormats", "ParallelRun",
    "QuorumFailures", "ResourceAction", "ResourceFactory", "ResourceManager", "ResourceState", "ResourceState2str",
    "Retry", "SFormats", "Task", "TaskStatus", "TopologyType", "Trace", "TraceAttr", "Types", "WaitResult", "clsinit",
    "clsinit_copy", "failtrap", "populate_factory", "tags",
]  # fmt: skip

def nepi(module: str) -> ModuleType: ...
