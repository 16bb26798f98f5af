"""The verbs of `fedmon experiment`."""
