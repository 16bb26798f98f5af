"""The owner's commands behind `fedmon node`."""
