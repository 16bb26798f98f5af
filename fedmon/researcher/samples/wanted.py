"""Which metrics and logs a process wants to hear, as filters of topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedmon.common.ids import NodeId
from fedmon.researcher.session.dialect import Dialect

Choice = frozenset[NodeId] | None
"""Nodes, or null for all."""


def wanted_filters(dialect: Dialect, *, metrics: Sequence[Choice], logs: Sequence[Choice]) -> set[str]:
    """Return the filters that bring what each choice of nodes wants, without asking twice for one."""
    return _filters(metrics, dialect.metrics_filter) | _filters(logs, dialect.logs_filter)


def _filters(choices: Sequence[Choice], of: Callable[[NodeId | None], str]) -> set[str]:
    if any(nodes is None for nodes in choices):
        return {of(None)}
    return {of(node) for nodes in choices for node in nodes or ()}
