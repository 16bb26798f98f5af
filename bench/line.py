"""The one line that every measurement prints."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence


def print_line(bench: str, case: str, *, ours: float, peer: float | None, unit: str) -> None:
    """Print one result as JSON; ``peer`` is what is compared with (a program or a budget), null for nothing."""
    ratio = None if not peer else round(ours / peer, 3)
    shown = None if peer is None else round(peer, 4)
    line = {"bench": bench, "case": case, "ours": round(ours, 4), "peer": shown, "ratio": ratio, "unit": unit}
    print(json.dumps(line), flush=True)


def medians(rounds: int, *timed: Callable[[], float]) -> Sequence[float]:
    """Run what is compared in turns, so that whatever else the machine does meets all alike; return the medians."""
    taken: list[list[float]] = [[] for _ in timed]
    for _ in range(rounds):
        for one, run in zip(taken, timed, strict=True):
            one.append(run())
    return [statistics.median(one) for one in taken]
