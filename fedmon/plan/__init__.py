"""The environment of a running training plan: its context, its dataset, and its inputs and results."""
