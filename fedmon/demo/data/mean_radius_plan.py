"""A training plan for the demo's owners to look at: class means over one hospital's rows."""

import csv
from typing import Any

from fedmon import TrainingPlan


class ClassMeans(TrainingPlan):
    """Return how many rows each diagnosis has, and the mean of one measurement in each."""

    def run(self, context: Any) -> dict[str, Any]:
        """Read the table once."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        with open(context.dataset.path, newline="") as table:
            for row in csv.DictReader(table):
                diagnosis = row["diagnosis"]
                counts[diagnosis] = counts.get(diagnosis, 0) + 1
                sums[diagnosis] = sums.get(diagnosis, 0.0) + float(row["mean_radius"])
        return {"count": counts, "mean_radius": {name: sums[name] / counts[name] for name in counts}}
