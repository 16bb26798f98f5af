"""Logistic regression over all hospitals, in rounds: python federated_logistic_regression.py [rounds].

Each round sends the model to every hospital. Each returns, over its own rows, the mean gradient and the mean curvature
of the loss; their averages, weighted by rows, are those of the pooled table, so that one Newton step at the researcher
is the step which one would make with all rows in one place. It ends at the same model, up to rounding: 1e-9.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedmon

PLAN = Path(__file__).parent / "plans" / "logistic_regression_plan.py"
TAGS = ["breast-cancer"]
MEASURES = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave_points")
COLUMNS = [f"worst_{name}" for name in (*MEASURES, "symmetry", "fractal_dimension")]
TABLE = {"columns": COLUMNS, "outcome": "diagnosis", "positive": "M"}
PENALTY = 1.0  # of the squared weights, as 1 / C of other programs
ENOUGH = 1e-9  # a step so short changes nothing any more
Parts = Mapping[str, Mapping[str, Any]]


def weighted_average(parts: Parts, name: str) -> Any:
    """Average what hospitals return under a name, each weighted by its rows."""
    rows = sum(part["rows"] for part in parts.values())
    return sum(part["rows"] * part[name] for part in parts.values()) / rows


def start_model(parts: Parts) -> dict[str, Any]:
    """Return the model to begin with, which knows nothing but where the columns lie and how far they spread."""
    center = weighted_average(parts, "mean")
    scale = np.sqrt(weighted_average(parts, "square") - center**2)
    return {"weights": np.zeros(len(center) + 1), "center": center, "scale": scale}


def next_model(model: dict[str, Any], parts: Parts) -> tuple[dict[str, Any], float]:
    """Return the model after one Newton step, and how long the step was. The intercept is not penalised."""
    rows = sum(part["rows"] for part in parts.values())
    penalty = np.diag([0.0, *[PENALTY / rows] * len(model["center"])])
    gradient = weighted_average(parts, "gradient") + penalty @ model["weights"]
    step = np.linalg.solve(weighted_average(parts, "curvature") + penalty, gradient)
    return model | {"weights": model["weights"] - step}, float(np.linalg.norm(step))


def train(
    fed: fedmon.Federation, rounds: int = 12, on_round: Callable[[int, Parts], object] | None = None
) -> dict[str, Any]:
    """Train until nothing changes any more, at most so many rounds, and return the model."""
    model = start_model(fed.run(PLAN, tags=TAGS, args=TABLE | {"task": "describe"}).result(timeout_s=60))
    for number in range(1, rounds + 1):
        asked = TABLE | {"task": "step", "round": number}
        run = fed.run(PLAN, tags=TAGS, args=asked, inputs=model, group="breast-cancer")
        parts = run.result(timeout_s=60)
        if on_round is not None:
            on_round(number, parts)
        model, length = next_model(model, parts)
        if length < ENOUGH:
            break
    return model


def show(number: int, parts: Parts) -> None:
    """Print how good the model was that a round began with."""
    loss, accuracy = weighted_average(parts, "loss"), weighted_average(parts, "accuracy")
    print(f"round {number}: loss {loss:.6f}, accuracy {accuracy:.1%}, hospitals {', '.join(sorted(parts))}")


def main(rounds: int) -> None:
    with fedmon.Federation() as fed:
        asked = fed.approve(PLAN, description="Logistic regression, in rounds", datasets=TAGS)
        print(asked)
        if any(reply.status.value != "approved" for reply in asked.ok.values()):
            sys.exit("not every owner has approved it yet; start me again when they have")
        model = train(fed, rounds, show)
        for column, weight in zip(["intercept", *COLUMNS], model["weights"], strict=True):
            print(f"{column}: {weight:.12g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
