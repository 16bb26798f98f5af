"""What can be wrong with the resources of a federation."""

from __future__ import annotations

from fedmon.experiment.errors import ExperimentError


class NeighbourLostError(ExperimentError):
    """A resource cannot go on without another that it is connected to, which failed or was released."""

    exit_code = 1

    def __init__(self, who: str, other: str, state: str, reason: str) -> None:
        super().__init__(f"{who} needs {other}, which is {state}{f': {reason}' if reason else ''}")


class MissingPartError(ExperimentError):
    """A resource lacks an attribute or a connection without which it means nothing."""

    def __init__(self, who: str, what: str, advice: str) -> None:
        super().__init__(f"{who} has no {what}: {advice}")


class NotOfferedError(ExperimentError):
    """A node does not offer the dataset, or more than one that fits."""

    exit_code = 3


class NotApprovedError(ExperimentError):
    """The owner of a node rejected a plan, or it could not be handed in there."""

    exit_code = 4


class JobFailedError(ExperimentError):
    """No node took a job, or it cannot be found again."""

    exit_code = 1


class ProcessFailedError(ExperimentError):
    """A command cannot be run."""

    exit_code = 1


class UnknownAggregationError(ExperimentError, ValueError):
    """An Aggregator names a function that nobody registered."""
