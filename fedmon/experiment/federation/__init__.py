"""The resource types of a federation; importing this registers them, connecting waits until a resource needs it."""

from fedmon.experiment.federation.aggregations import register_aggregation
from fedmon.experiment.federation.aggregator import Aggregator
from fedmon.experiment.federation.collector import Collector, NepiCollector
from fedmon.experiment.federation.dataset import Dataset
from fedmon.experiment.federation.job import Job
from fedmon.experiment.federation.local_process import LocalProcess
from fedmon.experiment.federation.monitor import Monitor
from fedmon.experiment.federation.node import Node
from fedmon.experiment.federation.training_plan import TrainingPlanResource
from fedmon.experiment.types import ResourceFactory

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

for _rclass in (
    Node,
    Dataset,
    TrainingPlanResource,
    Job,
    Monitor,
    Collector,
    NepiCollector,
    Aggregator,
    LocalProcess,
):
    ResourceFactory.register_own(_rclass)
