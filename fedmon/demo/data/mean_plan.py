"""Sums of one hospital for a mean and a standard deviation over all of them; no row leaves, and Python is enough."""

import math
from typing import Any

from fedmon import TrainingPlan

MINIMUM_ROWS = 10  # a mean over few rows says too much about each


class ColumnMeans(TrainingPlan):
    """Return for each column how many values there are, their mean, and their squared distances from it, summed."""

    arguments = {"columns": [str]}
    values = 300  # three for each column

    def run(self, context: Any) -> dict[str, Any]:
        """Read the table once; ``arguments["columns"]`` names the columns. An empty cell counts as no value."""
        names = context.arguments["columns"]
        values: dict[str, list[float]] = {name: [] for name in names}
        for row in context.dataset.rows():
            for name in names:
                if row[name]:
                    values[name].append(float(row[name]))
        return {name: self._described(name, column) for name, column in values.items()}

    @staticmethod
    def _described(name: str, column: list[float]) -> dict[str, float]:
        if len(column) < MINIMUM_ROWS:
            raise ValueError(f"column {name} has fewer than {MINIMUM_ROWS} values here, so nothing of it leaves")
        mean = math.fsum(column) / len(column)
        squares = math.fsum((value - mean) ** 2 for value in column)
        return {"rows": len(column), "mean": mean, "squares": squares}
