"""One plot, and the forms in which it comes: PNG, SVG, PDF."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.report.plots.figure import Group
from fedmon.report.plots.library import plain_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
KINDS = ("png", "svg", "pdf")
_PATH = re.compile(rb'(<path[^>]*? d=")([^"]*)(")')
_DIGITS = re.compile(rb"(\.\d)\d+")


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that can be drawn: ``name`` is the begin of a file name, ``draw`` makes a new matplotlib figure.

    ``is_combined`` where it shows all nodes together. Safe from any thread.
    """

    name: str
    title: str
    group: Group
    is_combined: bool
    draw: Callable[[], Figure]


def as_png(plot: Plot, *, dpi: int = DPI) -> bytes:
    """Return a plot as PNG of 128 colours, a quarter of the size of one with all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    with plain_settings():
        figure = plot.draw()
        figure.dpi = dpi
        canvas: Any = FigureCanvasAgg(figure)  # its methods have no types
        canvas.draw()
    drawn = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    colours = drawn.convert("RGB").quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    into = io.BytesIO()
    colours.save(into, "png", compress_level=6, dpi=(dpi, dpi))
    return into.getvalue()


def as_svg(plot: Plot) -> bytes:
    """Return a plot as SVG with text that is text, and coordinates of a tenth of a point."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # How text is written, and ids that do not change, are global settings of matplotlib.
    with plain_settings(svg__fonttype="none", svg__hashsalt=plot.name, path__simplify_threshold=0.25):
        drawn = _saved(plot, FigureCanvasSVG, "svg", metadata={"Date": None, "Creator": None})
    return _PATH.sub(lambda match: match[1] + _DIGITS.sub(rb"\1", match[2]).replace(b"\n", b"") + match[3], drawn)


def as_pdf(plot: Plot) -> bytes:
    """Return a plot as PDF."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    with plain_settings():
        return _saved(plot, FigureCanvasPdf, "pdf", metadata={"CreationDate": None, "Title": plot.title})


def maker_of(kind: str) -> Callable[[Plot], bytes]:
    """Return what makes plots of a kind, one of KINDS. Raises InvalidInputError for another."""
    if kind not in KINDS:
        raise InvalidInputError(f"no plots of the kind {kind!r}; one of: {', '.join(KINDS)}")
    return {"png": as_png, "svg": as_svg, "pdf": as_pdf}[kind]


def _saved(plot: Plot, canvas: Any, kind: str, **fields: Any) -> bytes:
    figure = plot.draw()
    canvas(figure)
    into = io.BytesIO()
    figure.savefig(into, format=kind, **fields)
    return into.getvalue()
