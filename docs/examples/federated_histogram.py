"""A histogram over all hospitals; what is in few rows stays where it is: python federated_histogram.py [column]."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import fedmon

PLAN = Path(__file__).parent / "plans" / "histogram_plan.py"
TAGS = ["breast-cancer"]
EDGES = [6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0, 30.0]


def federated_histogram(
    fed: fedmon.Federation, column: str, edges: list[float], minimum: int = 5
) -> list[dict[str, Any]]:
    """Run the plan on every hospital and add what they return, bin by bin."""
    run = fed.run(PLAN, tags=TAGS, args={"column": column, "edges": edges, "minimum": minimum})
    return combined(edges, {node: part["counts"] for node, part in run.result(timeout_s=60).items()})


def combined(edges: list[float], counts: dict[str, list[int | None]]) -> list[dict[str, Any]]:
    """Add the counts; ``withheld`` names who left a bin out, and then ``count`` is what there is at least."""
    bins = []
    for index, (low, high) in enumerate(pairwise(edges)):
        told = [part[index] for part in counts.values()]
        withheld = sorted(node for node, part in counts.items() if part[index] is None)
        bins.append({"low": low, "high": high, "count": sum(count or 0 for count in told), "withheld": withheld})
    return bins


def main(column: str) -> None:
    with fedmon.Federation() as fed:
        asked = fed.approve(PLAN, description="A histogram of one column, without small bins", datasets=TAGS)
        print(asked)
        if any(reply.status.value != "approved" for reply in asked.ok.values()):
            sys.exit("not every owner has approved it yet; start me again when they have")
        for one in federated_histogram(fed, column, EDGES):
            more = f"  and what {', '.join(one['withheld'])} withhold" if one["withheld"] else ""
            print(f"{one['low']:5g} to {one['high']:5g}  {one['count']:4d}{more}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "mean_radius")
