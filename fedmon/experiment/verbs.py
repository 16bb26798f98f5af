"""Former place of the running of verbs."""

from fedmon.experiment.errors import as_reason, told
from fedmon.experiment.hooks import failtrap, perform

__all__ = ["as_reason", "failtrap", "perform", "told"]
