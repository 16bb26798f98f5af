"""Finding the processes of a batch job on this host, and saying how sure that is."""

from fedmon.node.job.finders.found import Confidence, Found, JobNotFoundError, Tried, UnknownJobError
from fedmon.node.job.finders.search import find

__all__ = ["Confidence", "Found", "JobNotFoundError", "Tried", "UnknownJobError", "find"]
