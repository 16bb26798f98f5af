"""The legend beside a diagram: which line is what, its mean and its maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedmon.report.plots.curve import Curve
from fedmon.report.plots.literal import literal
from fedmon.report.plots.scale import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW_IN, _HEAD_IN = 0.142, 0.13
_SAMPLE_IN, _NAME_IN, _MEAN_IN, _MAX_IN = 0.2, 0.25, 1.7, 2.12
_LONGEST = 20
_PT, _HEAD_PT = 7.0, 6.0


def draw_legend(
    figure: Figure,
    entries: Sequence[tuple[str, Curve | None, str, Any]],
    scale: Scale,
    *,
    left_in: float,
    top_in: float,
) -> None:
    """Draw entries (name, curve, colour, dashes) below ``top_in``; matplotlib's own legend lays out several times."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()

    def write(x_in: float, y_in: float, text: str, **fields: Any) -> None:
        figure.text((left_in + x_in) / width, y_in / height, text, parse_math=False, **fields)

    for x_in, head in ((_MEAN_IN, "mean"), (_MAX_IN, "max")):
        write(x_in, top_in - 0.02, head, size=_HEAD_PT, ha="right", va="top", color="#666666")
    for number, (label, curve, colour, dashes) in enumerate(entries):
        y_in = top_in - _HEAD_IN - (number + 0.5) * _ROW_IN
        figure.add_artist(
            Line2D(
                [left_in / width, (left_in + _SAMPLE_IN) / width],
                [y_in / height] * 2,
                color=colour,
                linestyle=dashes,
                linewidth=1.5,
            )
        )
        write(_NAME_IN, y_in, literal(label, _LONGEST), size=_PT, va="center")
        if curve is not None and len(curve.t):
            for x_in, value in ((_MEAN_IN, curve.average), (_MAX_IN, curve.peak)):
                is_tiny = 0 < abs(value * scale.factor) < 0.01
                write(x_in, y_in, "≈ 0" if is_tiny else scale.number(value), size=_PT, va="center", ha="right")
