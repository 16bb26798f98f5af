"""Former place of the outcome of waits."""

from fedmon.experiment.engine import WaitResult

__all__ = ["WaitResult"]
