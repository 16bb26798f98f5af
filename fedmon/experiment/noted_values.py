"""Former place of values as files hold them."""

from fedmon.experiment.attributes import LARGEST, MAX_DEPTH, as_json, from_noted, is_same, noted, plain

__all__ = ["LARGEST", "MAX_DEPTH", "as_json", "from_noted", "is_same", "noted", "plain"]
