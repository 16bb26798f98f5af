"""Former place of what follows a run."""

from fedmon.experiment.journal import DOCUMENT, FileChanges, Follower

__all__ = ["DOCUMENT", "FileChanges", "Follower"]
