"""Metric names, kinds and units, and the batches that carry them."""
