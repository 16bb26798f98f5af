"""The one line that every measurement prints."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence


def print_line(bench: str, case: str, *, ours: float, peer: float | None, unit: str) -> None:
    """Print one result as JSON; ``peer`` is the figure of a program or a budget to compare with, or null."""
    ratio = None if not peer else round(ours / peer, 3)
    shown = None if peer is None else round(peer, 4)
    line = {"bench": bench, "case": case, "ours": round(ours, 4), "peer": shown, "ratio": ratio, "unit": unit}
    print(json.dumps(line), flush=True)


def medians(rounds: int, *timed: Callable[[], float]) -> Sequence[float]:
    """Run the compared functions in turns, so that other work of the machine meets all alike; return the medians."""
    taken: list[list[float]] = [[] for _ in timed]
    for _ in range(rounds):
        for one, run in zip(taken, timed, strict=True):
            one.append(run())
    return [statistics.median(one) for one in taken]
