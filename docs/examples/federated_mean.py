"""Mean and standard deviation of columns over all hospitals, from sums alone: python federated_mean.py [column ...]."""

import math
import sys
from pathlib import Path
from typing import Any

import fedmon

PLAN = Path(__file__).parent / "plans" / "mean_plan.py"
TAGS = ["breast-cancer"]


def federated_mean(fed: fedmon.Federation, columns: list[str]) -> dict[str, dict[str, float]]:
    """Run the plan on every hospital and put together what they return: rows, mean and deviation of each column."""
    run = fed.run(PLAN, tags=TAGS, args={"columns": columns})
    parts = run.result(timeout_s=60).values()
    return {column: combined([part[column] for part in parts]) for column in columns}


def combined(parts: list[dict[str, Any]]) -> dict[str, float]:
    """Put together what hospitals return of one column; exact but for rounding, since sums do not care who adds."""
    rows = sum(part["rows"] for part in parts)
    mean = math.fsum(part["rows"] * part["mean"] for part in parts) / rows
    # The squared distances from a hospital's own mean, moved to the mean of all.
    squares = math.fsum(part["squares"] + part["rows"] * (part["mean"] - mean) ** 2 for part in parts)
    return {"rows": rows, "mean": mean, "deviation": math.sqrt(squares / rows)}


def main(columns: list[str]) -> None:
    with fedmon.Federation() as fed:
        asked = fed.approve(PLAN, description="Means and deviations of columns", datasets=TAGS)
        print(asked)
        if any(reply.status.value != "approved" for reply in asked.ok.values()):
            sys.exit("not every owner has approved it yet; start me again when they have")
        for column, found in federated_mean(fed, columns).items():
            print(f"{column}: {found['mean']:.6g} +- {found['deviation']:.6g} over {found['rows']} rows")


if __name__ == "__main__":
    main(sys.argv[1:] or ["mean_radius", "mean_texture"])
