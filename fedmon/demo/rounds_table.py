"""How the rounds of the regression are shown: a row a round, with what it took of each hospital."""

from __future__ import annotations

from collections.abc import Sequence

from fedmon.demo.regression import Cost, Round


def round_columns(nodes: Sequence[str]) -> list[str]:
    """Return the heads of the table."""
    return ["round", "accuracy", "loss", "took", *nodes]


def round_row(one: Round, nodes: Sequence[str]) -> list[str]:
    """Return the row of a round."""
    costs = [_cost(one.nodes.get(node)) for node in nodes]
    return [str(one.number), f"{one.accuracy:.1%}", f"{one.loss:.4f}", f"{one.seconds:.2f} s", *costs]


def explanation(one: Round) -> str:
    """Say what the columns of hospitals hold, and how plans were confined there."""
    energy = "joules" if any(cost.joules is not None for cost in one.nodes.values()) else "no energy is measured here"
    levels = {node: str(cost.sandbox) for node, cost in one.nodes.items()}
    if len(set(levels.values())) == 1:
        confined = f"confined at level {next(iter(levels.values()))}"
    else:
        confined = "confined at level " + ", ".join(f"{level} at {node}" for node, level in levels.items())
    return f"at each hospital: seconds, bytes of the model there, bytes back, {energy}; {confined}"


def _cost(cost: Cost | None) -> str:
    if cost is None:
        return "-"
    seconds = "-" if cost.seconds is None else f"{cost.seconds:.2f} s"
    joules = "" if cost.joules is None else f" {cost.joules:.2f} J"
    return f"{seconds} {cost.bytes_sent}+{cost.bytes_received} B{joules}"
