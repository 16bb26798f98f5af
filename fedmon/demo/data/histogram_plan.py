"""A histogram of one column in one hospital; bins with few rows do not leave it, and Python is enough."""

import bisect
from itertools import pairwise
from typing import Any

from fedmon import TrainingPlan

MINIMUM_COUNT = 5  # what the owner approves: a researcher may ask for more, never for less


class Histogram(TrainingPlan):
    """Return how many rows fall into each bin, null where they are fewer than the minimum."""

    arguments = {"column": str, "edges": [float], "minimum": range(1, 1_000_000)}
    values = 1_000  # counts, null for those that stay here

    def run(self, context: Any) -> dict[str, Any]:
        """Count as numpy.histogram does: a bin includes its left edge, the last one its right edge, too.

        ``arguments``: ``column``, ``edges`` in rising order, and ``minimum``, which may be left out.
        """
        name, edges = context.arguments["column"], [float(edge) for edge in context.arguments["edges"]]
        minimum = max(MINIMUM_COUNT, int(context.arguments.get("minimum", MINIMUM_COUNT)))
        if len(edges) < 2 or any(right <= left for left, right in pairwise(edges)):
            raise ValueError("edges: give at least two numbers in rising order")
        counts, rows = [0] * (len(edges) - 1), 0
        for row in context.dataset.rows():
            rows += 1
            if row[name] and edges[0] <= (value := float(row[name])) <= edges[-1]:
                counts[min(bisect.bisect_right(edges, value), len(counts)) - 1] += 1
        return {"counts": shown(counts, rows, minimum), "minimum": minimum}


def shown(counts: list[int], rows: int, minimum: int) -> list[int | None]:
    """Return the counts that may leave.

    The number of rows of the table is known, so the omitted counts can be added up. Where that were few, the smallest
    bin that is still there is omitted, too: otherwise a single small bin could be computed from the others.
    """
    kept: list[int | None] = [count if count >= minimum else None for count in counts]
    while 0 < rows - sum(count or 0 for count in kept) < minimum and any(count is not None for count in kept):
        smallest = min(count for count in kept if count is not None)
        kept[kept.index(smallest)] = None
    return kept
