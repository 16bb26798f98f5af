"""How lines are spread over panels so that each can be told from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fedmon.report.plots.curve import Curve, join
from fedmon.report.plots.figure import Join
from fedmon.report.selection import natural

MOST_LINES = 7
"""Lines in a panel; of more the largest are shown, and the others as one."""
MOST_PANELS = 6


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A curve under the name that it has in its panel; ``is_rest`` is one for those that are not shown."""

    label: str
    curve: Curve
    is_rest: bool = False


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One diagram: its title, which is empty when it is the only one, its lines and their limits.

    ``average`` and ``peak`` are those of all its curves of one name; None where they are not of one kind.
    """

    title: str
    lines: tuple[Line, ...]
    limits: tuple[Line, ...]
    average: float
    peak: float
    of: str


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All panels of a figure; ``shares_scale`` where they show the same thing, ``left_out`` panels there is no room."""

    panels: tuple[Panel, ...]
    shares_scale: bool
    left_out: tuple[str, ...] = ()


def spread(curves: Sequence[Curve], width_s: float) -> Layout:
    """Spread curves over panels; the mean stands for lines beyond the largest of a panel."""
    lines = [curve for curve in curves if not curve.is_limit]
    limits = [curve for curve in curves if curve.is_limit]
    names = list(dict.fromkeys(curve.name for curve in lines))
    nodes = sorted({curve.node for curve in lines}, key=natural)
    has_nodes = len(nodes) > 1
    if (len(lines) <= MOST_LINES and not (has_nodes and len(names) > 1)) or (len(names) == 1 and not has_nodes):
        return Layout(panels=(_panel("", lines, limits, width_s),), shares_scale=True)
    by_name = len(names) > 1 and (not has_nodes or len(names) <= len(nodes))
    if not by_name and len(nodes) > MOST_PANELS and len(names) == 1:
        return Layout(panels=(_panel("", lines, limits, width_s),), shares_scale=True)
    if by_name or (len(nodes) > MOST_PANELS and len(names) > 1):
        shown = sorted(names, key=lambda name: -_size(lines, lambda curve: curve.name == name))[:MOST_PANELS]
        return Layout(
            panels=tuple(
                _panel(name, [curve for curve in lines if curve.name == name], limits, width_s)
                for name in names
                if name in shown
            ),
            shares_scale=False,
            left_out=tuple(name for name in names if name not in shown),
        )
    return Layout(
        panels=tuple(
            _panel(
                node,
                [curve for curve in lines if curve.node == node],
                [curve for curve in limits if curve.node == node],
                width_s,
            )
            for node in nodes
        ),
        shares_scale=True,
    )


def _size(curves: Sequence[Curve], chosen: Callable[[Curve], bool]) -> float:
    return max((abs(curve.average) for curve in curves if chosen(curve)), default=0.0)


def _panel(title: str, curves: Sequence[Curve], limits: Sequence[Curve], width_s: float) -> Panel:
    first = curves[0].name
    alike = [curve for curve in curves if curve.name == first]
    lines = [Line(label=label, curve=curve) for label, curve in zip(_labels(curves, title), curves, strict=True)]
    # Lines of one name are devices or nodes, in their natural order; names come as the figure lists them.
    order = list(dict.fromkeys(curve.name for curve in curves))
    lines.sort(key=lambda line: (order.index(line.curve.name), natural(line.curve.node), natural(line.curve.instance)))
    if len(lines) > MOST_LINES:
        by_size = sorted(range(len(lines)), key=lambda number: -abs(lines[number].curve.average))
        shown, others = by_size[: MOST_LINES - 1], [lines[number] for number in by_size[MOST_LINES - 1 :]]
        # Their sum would be on another scale than the lines that are shown.
        one = join([line.curve for line in others], Join.AVERAGE, width_s)
        lines = [lines[number] for number in sorted(shown)]
        lines.append(Line(label=f"{len(others)} others, average", curve=one, is_rest=True))
    return Panel(
        title=title,
        lines=tuple(lines),
        limits=_limits(limits, curves),
        average=sum(curve.average / len(alike) for curve in alike),
        peak=max(curve.peak for curve in alike),
        of=first if len(order) > 1 else lines[0].label if len(lines) == 1 and not limits else "",
    )


def _labels(curves: Sequence[Curve], title: str) -> list[str]:
    """Return what tells each curve from the others, and from the panel's title."""
    has = [len({getattr(curve, field) for curve in curves}) > 1 for field in ("node", "name", "instance")]
    found = []
    for curve in curves:
        words = [
            word
            for is_needed, word in zip(has, (curve.node, curve.name, curve.instance), strict=True)
            if is_needed and word
        ]
        found.append(" ".join(words) or next((word for word in (curve.instance, curve.name) if word != title), ""))
    return found


def _limits(limits: Sequence[Curve], curves: Sequence[Curve]) -> tuple[Line, ...]:
    """Return the limits that say something: the same one once, none that differ by line, none far above all lines."""
    peak = max(curve.peak for curve in curves)
    found = []
    for name in dict.fromkeys(curve.name for curve in limits):
        values = {round(curve.average, 6) for curve in limits if curve.name == name}
        if len(values) == 1 and 0 < next(iter(values)) <= 4 * peak:
            found.append(Line(label=name, curve=next(curve for curve in limits if curve.name == name)))
    return tuple(found)
