"""Finding the processes of a batch job on this host, and how sure that is."""

from fedmon.node.job.finders.search import (
    Confidence,
    Found,
    JobNotFoundError,
    JobSearch,
    Tried,
    UnknownJobError,
    find,
    look_up,
)

__all__ = ["Confidence", "Found", "JobNotFoundError", "JobSearch", "Tried", "UnknownJobError", "find", "look_up"]
