"""The report as a PDF on A4, whose text can be searched."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
from fpdf import FPDF, Align, FontFace, XPos, YPos

from fedmon.report.charts.draw import drawable, drawn
from fedmon.report.document.model import (
    LONGEST_TEXT,
    WORDS,
    Bars,
    Document,
    Drawn,
    Facts,
    Findings,
    Paragraph,
    Part,
    Section,
    TextTable,
    shown,
)
from fedmon.report.findings.case import Finding, Severity

_LOOKED_AT = 60
"""Rows that decide how wide columns are: measuring thousands takes longer than drawing them."""
_COLOURS = {
    Severity.PROBLEM: "#b3261e",
    Severity.WARNING: "#9a5b00",
    Severity.NOTE: "#2f5d8a",
    Severity.GOOD: "#2e6b3a",
    Severity.UNKNOWN: "#5f6368",
}
"""Dark enough for white text on them (contrast 4.5 and more), and told apart by the word, not by the colour alone."""
STYLES = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf", "I": "DejaVuSans-Oblique.ttf"}

FONT = "report"
_MARGIN_MM = 15.0
_HEADER_MM = 12.0
_LINE = 1.4
"""The distance of lines, by the size of the letters."""
_MM = 25.4 / 72
_INK, _SOFT, _RULE = 29, 95, 205
_MARK_MM = 18.0
_PAGES = "\u200b\u200b"
"""Stands for the number of pages; `shown` removes such letters, so no text is taken for it."""
_CHART_IN, _CHART_DPI = (3.5, 1.75), 200
"""Two of them stand side by side."""


class Page(FPDF):
    """Pages with the report's header and their number; letters that the font lacks are shown by their code."""

    def __init__(self, header: str) -> None:
        super().__init__(format="A4")
        self.set_margins(_MARGIN_MM, _MARGIN_MM + 4, _MARGIN_MM)
        self.set_auto_page_break(auto=True, margin=_MARGIN_MM + 2)
        for style, file in STYLES.items():
            self.add_font(FONT, style, Path(mpl.get_data_path()) / "fonts" / "ttf" / file)
        self.alias_nb_pages(_PAGES)
        self._header = self.safe(header)
        self.set_font(FONT, size=9)

    def header(self) -> None:
        """Write the title on top of each page."""
        self.set_y(_HEADER_MM - 4)
        self.set_text_color(_SOFT)
        self.set_font(FONT, size=7)
        self.cell(self.epw, 4, self._fitting(self._header), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
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

    @staticmethod
    def safe(text: str) -> str:
        """Return a text as one line that can be drawn."""
        return drawable(shown(text, LONGEST_TEXT))

    @property
    def left_mm(self) -> float:
        """How much room is left on the page."""
        return float(self.h - self.b_margin - self.get_y())

    def need(self, height_mm: float) -> None:
        """Begin a new page unless there is so much room on this one, or it is still empty."""
        if self.left_mm < height_mm and self.get_y() > self.t_margin + 1:
            self.add_page()

    def write_text(self, text: str, *, size: float = 9, style: str = "", grey: int = _INK, width: float = 0) -> None:
        """Write a paragraph and go below it."""
        self.set_font(FONT, style=style, size=size)
        self.set_text_color(grey)
        self.multi_cell(
            width or self.epw - (self.get_x() - self.l_margin), size * _MM * _LINE, self.safe(text), align=Align.L,
            new_x=XPos.LEFT, new_y=YPos.NEXT,
        )  # fmt: skip
        self.set_text_color(_INK)

    def height_of(self, text: str, width: float, *, size: float = 9, style: str = "") -> float:
        """Return how high a paragraph would be."""
        self.set_font(FONT, style=style, size=size)
        height = self.multi_cell(width, size * _MM * _LINE, self.safe(text), align=Align.L, dry_run=True,
                                 output="HEIGHT")  # fmt: skip
        return float(height)  # type: ignore[arg-type] # one number is asked for

    def _fitting(self, text: str) -> str:
        while len(text) > 4 and self.get_string_width(text) > self.epw:
            text = f"{text[:-5]}…"
        return text


def write_pdf(document: Document, path: Path) -> None:
    """Write the report without the folded sections of the page."""
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
    page.start_section(page.safe(section.title))
    page.ln(2)
    page.write_text(section.title, size=12, style="B")
    page.ln(1)
    for part in section.parts:
        _part(page, part)
    page.ln(2)


def _part(page: Page, part: Part) -> None:
    match part:
        case Paragraph():
            size = 8 if part.quiet else 9
            page.need(min(60.0, page.height_of(part.text, page.epw, size=size)))
            page.write_text(part.text, size=size, grey=_SOFT if part.quiet else _INK)
            page.ln(1.5)
        case Facts():
            _facts(page, part)
        case Bars():
            _bars(page, part)
        case Findings():
            for finding in part.findings:
                _finding(page, finding)
        case TextTable():
            _table(page, part)
        case Drawn() if not part.title:
            _charts(page, part)


def _facts(page: Page, facts: Facts) -> None:
    """Draw names and values in two columns."""
    width = page.epw / 2
    name_width = 26.0
    for at in range(0, len(facts.rows), 2):
        pair = facts.rows[at : at + 2]
        height = max(page.height_of(value, width - name_width - 3, size=8.5) for _, value in pair)
        page.need(height)
        top = page.get_y()
        for column, (name, value) in enumerate(pair):
            page.set_xy(page.l_margin + column * width, top)
            page.write_text(name, size=8.5, grey=_SOFT, width=name_width)
            page.set_xy(page.l_margin + column * width + name_width, top)
            page.write_text(value, size=8.5, width=width - name_width - 3)
        page.set_xy(page.l_margin, top + height + 0.6)
    page.ln(1)


def _bars(page: Page, bars: Bars) -> None:
    """Draw a bar for each share, with its name before and its words behind it."""
    for name, ratio, words in bars.rows:
        page.need(6)
        top, left, width = page.get_y(), page.l_margin + 26.0, 70.0
        page.write_text(name, size=8.5, grey=_SOFT, width=26.0)
        page.set_fill_color(225)
        page.rect(left, top + 0.5, width, 3, style="F")
        page.set_fill_color("#2f5d8a")
        page.rect(left, top + 0.5, max(0.2, width * min(1.0, max(0.0, ratio))), 3, style="F")
        page.set_xy(left + width + 2, top)
        page.write_text(words, size=8.5)
        page.set_xy(page.l_margin, top + 5)
    page.ln(1)


def _finding(page: Page, finding: Finding) -> None:
    left, width = page.l_margin + _MARK_MM + 3, page.epw - _MARK_MM - 3
    text = f"{finding.title}. {finding.text}"
    height = page.height_of(text, width)
    height += page.height_of(finding.advice, width, size=8.5, style="I") if finding.advice else 0
    page.need(height + 2)
    top = page.get_y()
    page.set_fill_color(_COLOURS[finding.severity])
    page.rect(page.l_margin, top, _MARK_MM, 4.6, style="F", round_corners=True, corner_radius=1)
    page.set_xy(page.l_margin, top + 0.1)
    page.set_text_color(255)
    page.set_font(FONT, style="B", size=7.5)
    page.cell(_MARK_MM, 4.6, WORDS[finding.severity], align=Align.C)
    page.set_xy(left, top)
    page.write_text(text, width=width)
    if finding.advice:
        page.write_text(finding.advice, size=8.5, style="I", width=width)
    page.set_xy(page.l_margin, max(page.get_y(), top + 5) + 1)
    page.set_draw_color(_RULE)
    page.line(page.l_margin, page.get_y() - 0.5, page.w - page.r_margin, page.get_y() - 0.5)
    page.ln(0.7)


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
    page.need(22)
    page.set_font(FONT, size=7.5)
    page.set_draw_color(_RULE)
    page.set_fill_color(255)
    align = tuple(Align.R if at in table.numeric else Align.L for at in range(len(table.headers)))
    style = FontFace(emphasis="BOLD", fill_color=(240, 243, 246))
    with page.table(
        [[page.safe(cell) for cell in row] for row in (table.headers, *table.rows)],
        borders_layout="HORIZONTAL_LINES", col_widths=_widths(page, table), headings_style=style, line_height=3.6,
        padding=(0.7, 1.2), text_align=align, align="LEFT", width=page.epw,
    ):  # fmt: skip
        pass
    page.ln(2)


def _widths(page: Page, table: TextTable) -> list[float]:
    """Give each column the width it needs, and at most a fair share to the widest ones."""
    wanted: list[float] = []
    for at, header in enumerate(table.headers):
        words = max((page.get_string_width(page.safe(word)) for word in header.split()), default=0.0) * 1.1
        cells = [page.get_string_width(page.safe(row[at])) for row in table.rows[:_LOOKED_AT]]
        wanted.append(max([words, *cells]) + 3.0)
    spare = page.epw - sum(wanted)
    if spare >= 0:
        return [width + spare / len(wanted) for width in wanted]
    limit = page.epw
    for taken, width in enumerate(sorted(wanted)):
        fair = (page.epw - sum(sorted(wanted)[:taken])) / (len(wanted) - taken)
        if width > fair:
            limit = fair
            break
    return [min(width, limit) for width in wanted]
