"""How reasons of many nodes are said: nodes with the same reason share a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmon.researcher.asking.outcome import Outcome, Outcomes

MAX_NODES_NAMED = 20


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Return ``a, b: reason`` for each reason, in the order in which they come first."""
    nodes: dict[str, list[str]] = {}
    for node_id, reason in reasons.items():
        nodes.setdefault(reason, []).append(node_id)
    return [f"{named(node_ids)}: {reason}" for reason, node_ids in nodes.items()]


def named(node_ids: Sequence[str]) -> str:
    """Return the names of nodes, of many the first ones and how many more."""
    more = len(node_ids) - MAX_NODES_NAMED
    return ", ".join(node_ids[:MAX_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


def why_not(outcomes: Outcomes[Any]) -> list[str]:
    """Return ``a, b: refused (reason)`` for those that did not do what they were asked."""
    return reasons(outcomes.failed)


def reasons(outcomes: Mapping[Any, Outcome[Any]]) -> list[str]:
    """Return the same for any outcomes; a reason that begins with the status does not say it twice."""
    return by_reason(
        {
            str(node_id): f"{one.status.value} ({one.reason.removeprefix(f'{one.status.value}: ')})"
            for node_id, one in outcomes.items()
        }
    )
