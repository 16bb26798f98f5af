"""Tables in the PDF: columns as wide as they need, rows that wrap, headers again on each page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fpdf import Align
from fpdf.enums import MethodReturnValue

from fedmon.report.document.model import Table

if TYPE_CHECKING:
    from fedmon.report.document.pdf import Page

_SIZE = 7.5
_LINE_MM = 3.6
_PAD_MM = 1.2
_LOOKED_AT = 60
"""Rows that decide how wide columns are: measuring thousands takes longer than drawing them."""


def draw_table(page: Page, table: Table) -> None:
    """Draw a table below what is there, over as many pages as it takes."""
    if not table.headers:
        return
    widths = _widths(page, table)
    header = _lines(page, table.headers, widths, style="B")
    first = _height(_lines(page, table.rows[0], widths)) if table.rows else 0.0
    _row(page, table, header, widths, is_header=True, least_mm=_height(header) + first)
    for cells in table.rows:
        lines = _lines(page, cells, widths)
        if page.left_mm < _height(lines):
            page.add_page()
            _row(page, table, header, widths, is_header=True, least_mm=0)
        _row(page, table, lines, widths, is_header=False, least_mm=0)


def _widths(page: Page, table: Table) -> list[float]:
    """Share the width of the page: each column gets what it needs, and the widest ones give."""
    wanted: list[float] = []
    for at, header in enumerate(table.headers):
        page.set_font("report", style="B", size=_SIZE)
        head = [page.get_string_width(page.safe(word)) for word in header.split() or [""]]
        page.set_font("report", size=_SIZE)
        cells = [page.get_string_width(page.safe(row[at])) for row in table.rows[:_LOOKED_AT]]
        wanted.append(max([*head, *cells]) + 2 * _PAD_MM + 0.6)
    spare = page.epw - sum(wanted)
    if spare >= 0:
        # Room that is left over goes to the texts, so that figures stay beside their names.
        texts = [at for at in range(len(wanted)) if at not in table.numeric] or list(range(len(wanted)))
        share = min(spare / len(texts), 12.0)
        return [width + (share if at in texts else 0) for at, width in enumerate(wanted)]
    limit = _limit(wanted, page.epw)
    return [min(width, limit) for width in wanted]


def _limit(wanted: Sequence[float], whole: float) -> float:
    """Return the width to which the widest columns are cut so that all of them fit."""
    left, columns = whole, len(wanted)
    for width in sorted(wanted):
        if width > left / columns:
            return left / columns
        left, columns = left - width, columns - 1
    return whole


def _lines(page: Page, cells: Sequence[str], widths: Sequence[float], *, style: str = "") -> list[list[str]]:
    page.set_font("report", style=style, size=_SIZE)
    found: list[list[str]] = []
    margin, page.c_margin = page.c_margin, 0.0
    for text, width in zip(cells, widths, strict=True):
        lines = page.multi_cell(width - 2 * _PAD_MM, _LINE_MM, page.safe(text), align=Align.L, padding=0, dry_run=True,
                                output=MethodReturnValue.LINES)  # fmt: skip
        found.append([str(line) for line in lines])  # type: ignore[union-attr] # lines are asked for
    page.c_margin = margin
    return found


def _height(lines: Sequence[Sequence[str]]) -> float:
    return max(map(len, lines)) * _LINE_MM + 1.4


def _row(
    page: Page, table: Table, lines: list[list[str]], widths: Sequence[float], *, is_header: bool, least_mm: float
) -> None:
    height = _height(lines)
    page.need(max(height, least_mm))
    top, left = page.get_y(), page.l_margin
    page.set_font("report", style="B" if is_header else "", size=_SIZE)
    if is_header:
        page.set_fill_color(240, 243, 246)
        page.rect(left, top, sum(widths), height, style="F")
    margin, page.c_margin = page.c_margin, 0.0
    for at, (cell, width) in enumerate(zip(lines, widths, strict=True)):
        for number, text in enumerate(cell):
            page.set_xy(left + _PAD_MM, top + 0.7 + number * _LINE_MM)
            # The lines fit, so each is one cell; breaking them again would cost as much as the first time.
            page.cell(width - 2 * _PAD_MM, _LINE_MM, text, align=Align.R if at in table.numeric else Align.L)
        left += width
    page.c_margin = margin
    page.set_draw_color(205)
    page.line(page.l_margin, top + height, page.l_margin + sum(widths), top + height)
    page.set_xy(page.l_margin, top + height)
