"""How the rounds of the regression are shown: a row a round, with what it took of each hospital."""

from __future__ import annotations

from collections.abc import Sequence

from fedmon.demo.regression import Cost, Round


def round_columns(nodes: Sequence[str]) -> list[str]:
    """Return the heads of the table."""
    # On 80 columns there is no room for what all names begin with.
    alike = len({node.rpartition("-")[0] for node in nodes}) == 1
    return ["round", "accuracy", "loss", "took", *(node.rpartition("-")[2] if alike else node for node in nodes)]


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
    sent = {cost.bytes_sent for cost in one.nodes.values()} | {cost.bytes_received for cost in one.nodes.values()}
    each = next(iter(one.nodes.values()))
    ways = f" ({each.bytes_sent} of the model there, {each.bytes_received} back)" if len(sent) <= 2 else ""
    return f"at each hospital: seconds, bytes{ways}, {energy}; {confined}"


def _cost(cost: Cost | None) -> str:
    if cost is None:
        return "-"
    seconds = "-" if cost.seconds is None else f"{cost.seconds:.2f} s"
    joules = "" if cost.joules is None else f" {cost.joules:.2f} J"
    return f"{seconds} {cost.bytes_sent + cost.bytes_received} B{joules}"
