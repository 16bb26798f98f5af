"""The resource types of a federation, which `ResourceFactory` registers; a connection is opened when one needs it."""

from fedmon.experiment.types.aggregator import Aggregator, register_aggregation
from fedmon.experiment.types.collector import Collector, NepiCollector
from fedmon.experiment.types.job import Job
from fedmon.experiment.types.local_process import LocalProcess
from fedmon.experiment.types.monitor import Monitor
from fedmon.experiment.types.node import Dataset, Node
from fedmon.experiment.types.training_plan import TrainingPlanResource

__all__ = [
    "Aggregator",
    "Collector",
    "Dataset",
    "Job",
    "LocalProcess",
    "Monitor",
    "NepiCollector",
    "Node",
    "TrainingPlanResource",
    "register_aggregation",
]
