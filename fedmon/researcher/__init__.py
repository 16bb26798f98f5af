"""The researcher's side: nodes, their datasets, approval, runs and live metrics."""
