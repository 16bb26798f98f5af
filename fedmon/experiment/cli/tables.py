"""The table of a run's resources, its summary, and its changes as lines."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedmon.common.log import escape_control
from fedmon.common.text import duration, rich_table
from fedmon.experiment.check.status import RUNS, Overview, Standing
from fedmon.experiment.states import ResourceState

_STYLES: Mapping[str, str] = {
    "STARTED": "cyan", "STOPPED": "green", "FAILED": "bold red", "RELEASED": "dim", "READY": "yellow",
}  # fmt: skip
_WIDE = 100
_GOING = (ResourceState.FAILED, ResourceState.STARTED, ResourceState.READY, ResourceState.RESERVED)


def table(shown: Overview, now: float, *, rows: int | None = None, width: int | None = None) -> Any:
    """Return the resources as a table of at most ``rows``, failed and active ones first.

    It fills a terminal of ``width`` columns; a narrow one shows no types beside names.
    """
    from rich.console import Group
    from rich.text import Text

    now = _moment(shown, now)
    who = {each.guid: each for each in shown.resources}
    chosen, more = _chosen(shown.resources, rows)
    found = rich_table(expand=width is not None)
    found.add_column("#", justify="right", no_wrap=True)
    has_names = any(each.name for each in chosen)
    if has_names:
        found.add_column("name", no_wrap=True, overflow="ellipsis", max_width=20)
    has_types = not has_names or width is None or width >= _WIDE
    if has_types:
        found.add_column("type", no_wrap=True, overflow="ellipsis", max_width=20)
    found.add_column("state", no_wrap=True)
    found.add_column("for", justify="right", no_wrap=True)
    found.add_column("why", overflow="fold" if rows is None else "ellipsis", no_wrap=rows is not None, ratio=1)
    for each in chosen:
        cells = [str(each.guid), *([each.name] if has_names else []), *([each.rtype] if has_types else [])]
        state = Text(_state_text(each), style="bold red" if each.failed else _STYLES.get(each.state, ""))
        found.add_row(
            *map(Text, map(escape_control, cells)), state, Text(_for(each, now)), Text(escape_control(_why(each, who)))
        )
    parts: list[Any] = [found] if chosen else []
    if more:
        parts.append(Text(f"... {more} more, see --json"))
    return Group(*parts)


def _moment(shown: Overview, now: float) -> float:
    """Return up to when times are counted: the last event, if no process has the run."""
    return now if shown.status == "running" else shown.until


def closing(shown: Overview, now: float) -> list[str]:
    """Return the summary: the number of resources by state, the blocker, and the failure."""
    end = _moment(shown, now)
    counts = ", ".join(f"{count} {name}" for name, count in shown.counts.items()) or "no resources"
    over = sum(_is_over(each) for each in shown.resources)
    failed = sum(each.failed for each in shown.resources)
    lines = [
        f"{duration(end - shown.began) if shown.began else '0 s'}: {counts}; {over} of {len(shown.resources)} over"
        + (f", {failed} failed" if failed else "")
    ]
    if shown.blocker:
        lines.append(f"blocker: {shown.blocker}")
    if shown.level_reason and not shown.failed:  # else the resource says it
        lines.append(f"{shown.level}: {shown.level_reason}")
    return [escape_control(line) for line in lines]


Moment = tuple[int, str, float]
"""A resource, a state, and the time."""


def moments(shown: Overview) -> set[Moment]:
    """Return the states that resources reached, and when."""
    return {(each.guid, state, t) for each in shown.resources for state, t in each.times.items()}


def change_lines(before: Collection[Moment], shown: Overview) -> list[str]:
    """Return a line for each state that resources reached since ``before``."""
    by_guid = {each.guid: each for each in shown.resources}
    moved: dict[str, list[tuple[float, Standing]]] = {}
    for guid, state, t in sorted(moments(shown).difference(before), key=lambda moment: moment[2]):
        moved.setdefault(state, []).append((t, by_guid[guid]))
    lines = []
    for state, those in sorted(moved.items(), key=lambda found: found[1][-1][0]):
        listed = ", ".join(_who(each) for _, each in those[:8])
        more = f" and {len(those) - 8} more" if len(those) > 8 else ""
        lines.append(f"{clock(those[-1][0])} {state} {listed}{more}")
    return [escape_control(line) for line in lines]


def clock(t: float) -> str:
    """Return a time of day, local, with its milliseconds."""
    return datetime.datetime.fromtimestamp(t).astimezone().isoformat(sep=" ", timespec="milliseconds")[11:23]


def _who(each: Standing) -> str:
    return f"{each.guid}{f' {each.name}' if each.name else ''} ({each.rtype})"


def _state_text(each: Standing) -> str:
    if each.state == ResourceState.RELEASED.name and each.reached != ResourceState.RELEASED.name:
        return f"{each.reached}, released"
    return each.state


def _for(each: Standing, now: float) -> str:
    """Return how long it is in its state; of a released one, how long it ran."""
    began, ended = each.times.get("STARTED"), each.times.get("STOPPED", each.times.get("FAILED"))
    if each.state in ("STOPPED", "FAILED", "RELEASED"):
        ended = each.times.get("RELEASED") if ended is None else ended
        return duration(ended - began) if began is not None and ended is not None and ended >= began else ""
    return duration(now - each.since) if each.since is not None else ""


def _why(each: Standing, who: Mapping[int, Standing]) -> str:
    """Return briefly why it failed or what it waits for; `waiting` has the full text."""
    if each.failed:
        return each.reason if each.critical else f"(not critical) {each.reason}"
    if not each.action:
        return each.waiting.removeprefix(RUNS)
    if each.left_s is not None:
        return f"{each.action} in {duration(each.left_s)}"
    others = [who[guid] for guid in each.waits_for if guid in who]
    listed = ", ".join(f"{other.guid} {other.name}".rstrip() + f" ({other.state})" for other in others[:4])
    return f"{each.action} waits for {listed}{' ...' if len(others) > 4 else ''}"


def _is_over(each: Standing) -> bool:
    return ResourceState[each.state] >= ResourceState.STOPPED


def _chosen(resources: Sequence[Standing], rows: int | None) -> tuple[list[Standing], int]:
    if rows is None or len(resources) <= rows:
        return list(resources), 0
    ranks = {state.name: rank for rank, state in enumerate(_GOING)}
    by_rank = sorted(resources, key=lambda each: (not each.failed, ranks.get(each.state, 9), each.guid))
    kept = sorted(by_rank[: max(1, rows)], key=lambda each: each.guid)
    return kept, len(resources) - len(kept)
