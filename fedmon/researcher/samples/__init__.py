"""Metrics and logs of nodes: watched, recorded, resent."""
