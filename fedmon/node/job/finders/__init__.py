"""The search for the processes of a batch job on this host, and its confidence."""

from fedmon.node.job.finders.search import Confidence, Found, JobNotFoundError, JobSearch, UnknownJobError, look_up

__all__ = ["Confidence", "Found", "JobNotFoundError", "JobSearch", "UnknownJobError", "look_up"]
