"""Former place of the controller as resources see it."""

from fedmon.experiment.resource import Experiment
from fedmon.experiment.situation import Guids

__all__ = ["Experiment", "Guids"]
