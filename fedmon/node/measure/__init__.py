"""From a collector's reading to a published and a recorded sample."""
