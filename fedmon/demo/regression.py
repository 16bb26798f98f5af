"""The last step of the demo: a logistic regression over the hospitals, in rounds, with the cost of each.

The arithmetic is that of docs/examples/federated_logistic_regression.py, which is there to be read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.plan import parcels
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.handle import RunHandle

if TYPE_CHECKING:
    import numpy.typing as npt

PLAN = "logistic_regression_plan.py"
TAGS = ("breast-cancer",)
_MEASURES = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave_points")
COLUMNS = tuple(f"worst_{name}" for name in (*_MEASURES, "symmetry", "fractal_dimension"))
TABLE: Mapping[str, Any] = {"columns": list(COLUMNS), "outcome": "diagnosis", "positive": "M"}
PENALTY = 1.0
ENOUGH = 1e-9
MAX_ROUNDS = 12
ROUND_S = 60.0

Parts = Mapping[str, Mapping[str, Any]]


class RoundCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one round took of one node.

    ``seconds`` is how long the plan ran there; bytes are those of the model on its way there, and of what came back;
    ``joules`` of the job is None where the node does not measure it.
    """

    seconds: float | None
    bytes_sent: int
    bytes_received: int
    joules: float | None
    sandbox: str | None


class TrainingRound(msgspec.Struct, frozen=True, kw_only=True):
    """One round: how good the model was that it began with, how far it was moved, and what that took.

    ``seconds`` is what the round took at the researcher, from the request to the last answer.
    """

    number: int
    loss: float
    accuracy: float
    step: float
    seconds: float
    nodes: dict[str, RoundCost]

    @property
    def is_last(self) -> bool:
        """Whether nothing changes any more."""
        return self.step < ENOUGH

    @property
    def progress(self) -> float:
        """How much of the training is over at the least, 0 to 1."""
        return 1.0 if self.is_last else self.number / MAX_ROUNDS


class Regression:
    """Trains a model that no hospital and no researcher could train alone. ``model`` is what there is so far."""

    def __init__(self, federation: Federation, plan: Path) -> None:
        self._federation, self._plan = federation, plan
        self.model: dict[str, npt.NDArray[Any]] = {}

    def rounds(self) -> Iterator[TrainingRound]:
        """Run round after round until nothing changes any more. Raises RunFailedError, or what asking raises."""
        import numpy as np

        described = self._run({"task": "describe"}, {}).result(timeout_s=ROUND_S)
        center = _average(described, "mean")
        scale = np.sqrt(_average(described, "square") - center**2)
        self.model = {"weights": np.zeros(len(COLUMNS) + 1), "center": center, "scale": scale}
        for number in range(1, MAX_ROUNDS + 1):
            began = time.monotonic()
            sent_bytes = parcels.pack(self.model).size_bytes
            run = self._run({"task": "step", "round": number}, self.model)
            parts = run.result(timeout_s=ROUND_S)
            taken_s = time.monotonic() - began
            done = TrainingRound(
                number=number,
                loss=float(_average(parts, "loss")),
                accuracy=float(_average(parts, "accuracy")),
                step=self._move(parts),
                seconds=taken_s,
                nodes={node_id: _cost(run, node_id, sent_bytes, part) for node_id, part in parts.items()},
            )
            yield done
            if done.is_last:
                return

    def _run(self, task: Mapping[str, Any], inputs: Mapping[str, Any]) -> RunHandle:
        return self._federation.run(self._plan, tags=list(TAGS), args={**TABLE, **task}, inputs=inputs)

    def _move(self, parts: Parts) -> float:
        """Make one Newton step on the averages of all hospitals, and return how long it was."""
        import numpy as np

        rows, weights = sum(part["rows"] for part in parts.values()), self.model["weights"]
        penalty = np.diag([0.0, *[PENALTY / rows] * len(COLUMNS)])
        gradient = _average(parts, "gradient") + penalty @ weights
        step = np.linalg.solve(_average(parts, "curvature") + penalty, gradient)
        self.model["weights"] = weights - step
        return float(np.linalg.norm(step))


def _average(parts: Parts, name: str) -> Any:
    """Average what hospitals return under a name, each weighted by its rows."""
    rows = sum(part["rows"] for part in parts.values())
    return sum(part["rows"] * part[name] for part in parts.values()) / rows


def _cost(run: RunHandle, node_id: str, sent_bytes: int, part: Mapping[str, Any]) -> RoundCost:
    job = run.states()[node_id].job
    return RoundCost(
        seconds=None if job is None else job.usage.wall_s,
        bytes_sent=sent_bytes,
        bytes_received=parcels.pack(part).size_bytes,
        joules=None if job is None else job.usage.energy_j,
        sandbox=None if job is None else job.sandbox,
    )


def round_columns(nodes: Sequence[str]) -> list[str]:
    """Return the heads of the table."""
    # On 80 columns there is no room for what all names begin with.
    alike = len({node.rpartition("-")[0] for node in nodes}) == 1
    return ["round", "accuracy", "loss", "took", *(node.rpartition("-")[2] if alike else node for node in nodes)]


def round_row(one: TrainingRound, nodes: Sequence[str]) -> list[str]:
    """Return the row of a round."""
    costs = [_cost_cell(one.nodes.get(node)) for node in nodes]
    return [str(one.number), f"{one.accuracy:.1%}", f"{one.loss:.4f}", f"{one.seconds:.2f} s", *costs]


def explanation(one: TrainingRound) -> str:
    """Say what the columns of hospitals hold, and how plans were confined there."""
    energy = "joules" if any(cost.joules is not None for cost in one.nodes.values()) else "no energy is measured here"
    levels = {node: str(cost.sandbox) for node, cost in one.nodes.items()}
    if len(set(levels.values())) == 1:
        confined = f"confined at level {next(iter(levels.values()))}"
    else:
        confined = "confined at level " + ", ".join(f"{level} at {node}" for node, level in levels.items())
    sent = {cost.bytes_sent for cost in one.nodes.values()} | {cost.bytes_received for cost in one.nodes.values()}
    each = next(iter(one.nodes.values()))
    ways = f" ({each.bytes_sent} of the model there, {each.bytes_received} back)" if len(sent) <= 2 else ""
    return f"at each hospital: seconds, bytes{ways}, {energy}; {confined}"


def _cost_cell(cost: RoundCost | None) -> str:
    if cost is None:
        return "-"
    seconds = "-" if cost.seconds is None else f"{cost.seconds:.2f} s"
    joules = "" if cost.joules is None else f" {cost.joules:.2f} J"
    return f"{seconds} {cost.bytes_sent + cost.bytes_received} B{joules}"
