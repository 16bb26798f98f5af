"""The report as a PDF on A4, whose text can be searched."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from fpdf import FPDF, Align, FontFace, XPos, YPos
from fpdf.table import Table

from fedmon.report.charts.draw import drawn
from fedmon.report.document.model import (
    LONGEST,
    LONGEST_TEXT,
    Document,
    Drawn,
    Facts,
    Findings,
    Part,
    Section,
    TextTable,
    shown,
)
from fedmon.report.findings.case import WORDS, Severity

_LOOKED_AT = 60
"""Rows that decide how wide columns are: measuring thousands takes longer than drawing them."""
_COLOURS = {
    Severity.PROBLEM: "#b3261e",
    Severity.WARNING: "#9a5b00",
    Severity.NOTE: "#2f5d8a",
    Severity.GOOD: "#2e6b3a",
    Severity.UNKNOWN: "#5f6368",
}
"""Dark enough on white (contrast 4.5 and more), and told apart by the word, not by the colour alone."""
STYLES = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf"}

FONT = "report"
_MARGIN_MM = 15.0
_HEADER_MM, _HEADER_LETTERS = 12.0, 120
_LINE = 1.4
"""The distance of lines, by the size of the letters."""
_MM = 25.4 / 72
_INK, _SOFT, _RULE = 29, 95, 205
_MARK_MM, _NAME_MM = 20.0, 26.0
_FINDING_LETTERS = 1500
"""A text of this length fits on any page."""
_PAGES = "\u200b\u200b"
"""Stands for the number of pages; `shown` removes such letters, so no text is taken for it."""
_CHART_IN, _CHART_DPI = (3.5, 1.75), 200
"""Two of them stand side by side."""


class Page(FPDF):
    """Pages with the report's header and their number; a letter that the font lacks is a box."""

    def __init__(self, header: str) -> None:
        super().__init__(format="A4")
        self.set_margins(_MARGIN_MM, _MARGIN_MM + 4, _MARGIN_MM)
        self.set_auto_page_break(auto=True, margin=_MARGIN_MM + 2)
        for style, file in STYLES.items():
            self.add_font(FONT, style, Path(mpl.get_data_path()) / "fonts" / "ttf" / file)
        self.alias_nb_pages(_PAGES)
        self._header = shown(header, _HEADER_LETTERS)
        self.set_font(FONT, size=9)

    def header(self) -> None:
        """Write the title on top of each page."""
        self.set_y(_HEADER_MM - 4)
        self.set_text_color(_SOFT)
        self.set_font(FONT, size=7)
        room = self.epw - 2 * self.c_margin
        self.set_font(FONT, size=7 * min(1.0, room / max(1.0, self.get_string_width(self._header))))
        self.cell(self.epw, 4, self._header, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        self.set_draw_color(_RULE)
        self.line(self.l_margin, _HEADER_MM + 1, self.w - self.r_margin, _HEADER_MM + 1)
        self.set_text_color(_INK)
        self.set_y(_MARGIN_MM + 4)

    def footer(self) -> None:
        """Write the number of the page at its foot."""
        self.set_y(-12)
        self.set_text_color(_SOFT)
        self.set_font(FONT, size=7)
        self.cell(self.epw, 4, f"page {self.page_no()} of {_PAGES}", align=Align.C)
        self.set_text_color(_INK)

    def need(self, height_mm: float) -> None:
        """Begin a new page unless there is so much room on this one, or it is still empty."""
        if self.will_page_break(height_mm) and self.get_y() > self.t_margin + 1:
            self.add_page()

    def write_text(self, text: str, *, size: float = 9, style: str = "", grey: int = _INK) -> None:
        """Write a paragraph and go below it."""
        self.set_font(FONT, style=style, size=size)
        self.set_text_color(grey)
        self.multi_cell(0, size * _MM * _LINE, shown(text, LONGEST_TEXT), align=Align.L,
                        new_x=XPos.LMARGIN, new_y=YPos.NEXT)  # fmt: skip
        self.set_text_color(_INK)

    def grid(self, widths: Sequence[float], *, size: float, borders: str, **more: Any) -> AbstractContextManager[Table]:
        """Return a table over the whole width, whose rows are not broken."""
        self.set_font(FONT, size=size)
        self.set_draw_color(_RULE)
        self.set_fill_color(255)
        look: dict[str, Any] = {"text_align": "LEFT", "first_row_as_headings": False} | more
        return self.table(
            col_widths=widths, width=self.epw, borders_layout=borders, line_height=size * _MM * _LINE, align="LEFT",
            v_align="TOP", padding=(0.5, 1.2), **look,
        )  # fmt: skip


def write_pdf(document: Document, path: Path) -> None:
    """Write the report without bars, and without the folded sections of the page."""
    page = Page(document.header)
    page.set_title(shown(document.title))
    page.set_creator("fedmon")
    page.set_lang("en")
    page.add_page()
    page.write_text(document.title, size=16, style="B")
    page.write_text(document.subtitle, size=9, grey=_SOFT)
    page.ln(2)
    for section in document.sections:
        if not section.is_folded:
            _section(page, section)
    page.output(str(path))


def _section(page: Page, section: Section) -> None:
    first = section.parts[0]
    page.need(_chart_mm(page) + 10 if isinstance(first, Drawn) else 35)
    page.start_section(shown(section.title))
    page.ln(2)
    page.write_text(section.title, size=12, style="B")
    page.ln(1)
    for part in section.parts:
        _part(page, part)
    page.ln(2)


def _part(page: Page, part: Part) -> None:
    match part:
        case Facts():
            _facts(page, part)
        case Findings():
            _findings(page, part)
        case TextTable():
            _table(page, part)
        case Drawn():
            _charts(page, part)


def _facts(page: Page, facts: Facts) -> None:
    """Draw names and values in two columns."""
    values = page.epw / 2 - _NAME_MM
    with page.grid((_NAME_MM, values) * 2, size=8.5, borders="NONE") as table:
        for at in range(0, len(facts.rows), 2):
            row = table.row()
            for name, value in facts.rows[at : at + 2]:
                row.cell(shown(name, LONGEST), style=FontFace(color=_SOFT))
                row.cell(shown(value, LONGEST))
    page.ln(1)


def _findings(page: Page, part: Findings) -> None:
    with page.grid((_MARK_MM, page.epw - _MARK_MM), size=9, borders="HORIZONTAL_LINES") as table:
        for one in part.findings:
            mark = FontFace(emphasis="BOLD", color=_COLOURS[one.severity])
            text = shown(f"{one.title}. {one.text}", _FINDING_LETTERS)
            row = table.row()
            row.cell(WORDS[one.severity], style=mark)
            row.cell(f"{text}\n→ {shown(one.advice, LONGEST_TEXT)}" if one.advice else text)


def _chart_mm(page: Page) -> float:
    return float(page.epw / 2 * _CHART_IN[1] / _CHART_IN[0])


def _charts(page: Page, part: Drawn) -> None:
    """Draw charts, two side by side."""
    width, height = page.epw / 2, _chart_mm(page)
    for at in range(0, len(part.charts), 2):
        page.need(height + 1)
        top = page.get_y()
        for column, chart in enumerate(part.charts[at : at + 2]):
            png = drawn(chart, part.of, "png", size_in=_CHART_IN, dpi=_CHART_DPI)
            page.image(io.BytesIO(png), x=page.l_margin + column * width, y=top, w=width, h=height,
                       alt_text=shown(chart.title))  # fmt: skip
        page.set_xy(page.l_margin, top + height + 1)


def _table(page: Page, table: TextTable) -> None:
    """Draw a table with its headers again on each page."""
    if table.title:
        page.need(30)
        page.ln(1)
        page.write_text(table.title, size=9, style="B")
    align = tuple("RIGHT" if at in table.numeric else "LEFT" for at in range(len(table.headers)))
    head = FontFace(emphasis="BOLD", fill_color=(240, 243, 246))
    rows = [[shown(cell, LONGEST) for cell in row] for row in (table.headers, *table.rows)]
    page.set_font(FONT, size=7.5)
    with page.grid(_widths(page, rows), size=7.5, borders="HORIZONTAL_LINES", text_align=align, headings_style=head,
                   first_row_as_headings=True) as grid:  # fmt: skip
        for cells in rows:
            grid.row(cells)
    page.ln(2)


def _widths(page: Page, rows: Sequence[Sequence[str]]) -> list[float]:
    """Return the width that each column needs; the widest ones share the rest."""
    wanted: list[float] = []
    for head, *cells in zip(*rows[: _LOOKED_AT + 1], strict=True):
        words = max((page.get_string_width(word) for word in head.split()), default=0.0) * 1.1
        wanted.append(max([words, *map(page.get_string_width, cells)]) + 3.0)
    limit = max(wanted)
    while sum(min(width, limit) for width in wanted) > page.epw:
        limit -= 0.5
    return [min(width, limit) for width in wanted]
