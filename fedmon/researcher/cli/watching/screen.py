"""One screen of `fedmon watch`: tables that fit, what is missing and why, and a line of totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fedmon.common.log import escape_control
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.cli.watching.groups import Group
from fedmon.researcher.cli.watching.state import Absent, WatchState
from fedmon.researcher.cli.watching.table import Table, fitted

MAX_ABSENT = 6
"""How many reasons are shown; the rest is counted."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What stands on the screen, from top to bottom."""

    tables: tuple[Table, ...]
    absent: tuple[str, ...]
    totals: str


def compose(
    state: WatchState,
    groups: Sequence[Group],
    *,
    capabilities: Mapping[str, MonitorReply],
    refusals: Mapping[str, str],
    width: int,
    height: int | None,
    worst_first: bool = True,
    lost: int = 0,
) -> Screen:
    """Return what fits on a screen of this size; ``height`` null shows every row."""
    tables = [group.table(state) for group in groups]
    tables = [table.worst_first() if worst_first else table for table in tables if table.rows]
    absent = _absent_lines(state.absent(capabilities), refusals, nodes=len(state.nodes), width=width)
    if height is not None:
        # A low screen shows numbers before reasons.
        absent = absent[: max(1, min(len(absent), height // 5))] if absent else absent
        tables = fitted(tables, height=height - len(absent) - (2 if absent else 0) - 2)
    tables = [table.narrowed(width) for table in tables]
    return Screen(tables=tuple(tables), absent=tuple(absent), totals=_totals(state, lost))


def _totals(state: WatchState, lost: int) -> str:
    parts = [_counted(len(state.nodes), "node"), _counted(state.samples, "sample"), f"{lost} lost"]
    if state.late:
        parts.append(f"{state.late} late")
    gaps = {node: missing for node in state.nodes if (missing := state.missing(node))}
    if gaps:
        worst = sorted(gaps, key=lambda node: -gaps[node])
        parts.append(f"{sum(gaps.values())} missing: {', '.join(f'{node} {gaps[node]}' for node in worst[:3])}")
    return ", ".join(parts)


def _absent_lines(absent: list[Absent], refusals: Mapping[str, str], *, nodes: int, width: int) -> list[str]:
    lines = [f"{node}: {reason}" for node, reason in sorted(refusals.items())]
    for one in absent[:MAX_ABSENT]:
        where = "" if nodes <= 1 else " everywhere" if len(one.nodes) == nodes else f" on {_some(one.nodes)}"
        lines.append(f"{one.metric}{where}: {one.reason}")
    if len(absent) > MAX_ABSENT:
        lines.append(f"... {len(absent) - MAX_ABSENT} more reasons; fedmon watch --absent shows all")
    return [_cut(escape_control(line), width) for line in lines]


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= 2 else f"{nodes[0]}, {nodes[1]} and {len(nodes) - 2} more"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(1, width - 3)]}..."
