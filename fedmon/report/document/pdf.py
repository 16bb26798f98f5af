"""The report as a PDF on A4, whose text can be searched."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

from fpdf import FPDF, Align, XPos, YPos

from fedmon.report.document.model import (
    LONGEST_TEXT,
    Document,
    Facts,
    Findings,
    Paragraph,
    Part,
    Picture,
    Section,
    Table,
    shown,
)
from fedmon.report.document.pdf_fonts import STYLES, font_folder, write_placeholders
from fedmon.report.document.pdf_table import draw_table
from fedmon.report.document.style import COLOURS, WORDS
from fedmon.report.findings.finding import Finding

FONT = "report"
_FALLBACK = "fallback"
_MARGIN_MM = 15.0
_HEADER_MM = 12.0
_LINE = 1.4
"""The distance of lines, by the size of the letters."""
_MM = 25.4 / 72
_INK, _SOFT, _RULE = 29, 95, 205
_MARK_MM = 18.0
_PAGES = "\u200b\u200b"
"""Stands for how many pages there are; `shown` lets no such letters through, so nobody's text is taken for it."""
_PICTURE_GAP_MM = 2.0


class Page(FPDF):
    """Pages with the report's header and their number; text in any script."""

    def __init__(self, header: str, letters: set[str], folder: Path) -> None:
        """``letters`` are those that will be written; what is needed for them is kept in ``folder`` until the end."""
        super().__init__(format="A4")
        self.set_margins(_MARGIN_MM, _MARGIN_MM + 4, _MARGIN_MM)
        self.set_auto_page_break(auto=True, margin=_MARGIN_MM + 2)
        for style, file in STYLES.items():
            self.add_font(FONT, style, font_folder() / file)
        known = self.fonts[FONT].cmap  # type: ignore[union-attr] # a TTFFont, as it was just added
        missing = {ord(letter) for letter in letters} - known.keys()
        if missing and write_placeholders(missing, folder / "placeholders.ttf"):
            for style in STYLES:
                self.add_font(_FALLBACK, style, folder / "placeholders.ttf")
            self.set_fallback_fonts([_FALLBACK])
        self.alias_nb_pages(_PAGES)
        self._header = self.safe(header)
        self.set_font(FONT, size=9)

    def header(self) -> None:
        """Write on top of each page what it belongs to."""
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
        return shown(text, LONGEST_TEXT)

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


def write_pdf(
    document: Document, path: Path, *, on_picture: Callable[[], object] = lambda: None, beside: Path | None = None
) -> None:
    """Write the report; ``on_picture`` is called after each drawing, ``beside`` is where fonts lie meanwhile."""
    letters = {letter for text in document.texts() for letter in shown(text, LONGEST_TEXT)}
    with tempfile.TemporaryDirectory(prefix=".fedmon-", dir=beside) as folder:
        page = Page(document.header, letters, Path(folder))
        page.set_title(shown(document.title))
        page.set_creator("fedmon")
        page.set_lang("en")
        page.add_page()
        page.write_text(document.title, size=16, style="B")
        page.write_text(document.subtitle, size=9, grey=_SOFT)
        page.ln(2)
        for section in document.sections:
            _section(page, section, on_picture)
        page.output(str(path))


def _section(page: Page, section: Section, on_picture: Callable[[], object]) -> None:
    first = section.parts[0] if section.parts else None
    if first is None:
        return
    if section.breaks and page.get_y() > page.t_margin + 1:
        page.add_page()
    page.need(75 if isinstance(first, Picture) else 30)
    page.start_section(page.safe(section.title))
    page.ln(2)
    page.write_text(section.title, size=12, style="B")
    page.ln(1)
    for part in section.parts:
        _part(page, part)
        if isinstance(part, Picture):
            on_picture()
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
        case Findings():
            for finding in part.findings:
                _finding(page, finding, part.details)
        case Table():
            if part.title:
                page.need(20)
                page.ln(1)
                page.write_text(part.title, size=9, style="B")
            draw_table(page, part)
            page.ln(2)
        case Picture():
            _picture(page, part)


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


def _finding(page: Page, finding: Finding, details: bool) -> None:  # noqa: FBT001 - one of two ways
    left, width = page.l_margin + _MARK_MM + 3, page.epw - _MARK_MM - 3
    text = f"{finding.title}. {finding.text}"
    how = f"How: {finding.how}." if details and finding.how else ""
    height = page.height_of(text, width)
    height += page.height_of(finding.advice, width, size=8.5, style="I") if finding.advice else 0
    height += page.height_of(how, width, size=7.5) if how else 0
    page.need(height + 2)
    top = page.get_y()
    page.set_fill_color(COLOURS[finding.severity])
    page.rect(page.l_margin, top, _MARK_MM, 4.6, style="F", round_corners=True, corner_radius=1)
    page.set_xy(page.l_margin, top + 0.1)
    page.set_text_color(255)
    page.set_font(FONT, style="B", size=7.5)
    page.cell(_MARK_MM, 4.6, WORDS[finding.severity], align=Align.C)
    page.set_xy(left, top)
    page.write_text(text, width=width)
    if finding.advice:
        page.write_text(finding.advice, size=8.5, style="I", width=width)
    if how:
        page.write_text(how, size=7.5, grey=_SOFT, width=width)
    page.set_xy(page.l_margin, max(page.get_y(), top + 5) + 1)
    page.set_draw_color(_RULE)
    page.line(page.l_margin, page.get_y() - 0.5, page.w - page.r_margin, page.get_y() - 0.5)
    page.ln(0.7)


def _picture(page: Page, picture: Picture) -> None:
    drawing = picture.png()
    wide, high = _pixels(drawing)
    whole = page.h - page.t_margin - page.b_margin
    # A little smaller, and four of them fit on a page instead of three.
    quarter = whole / 4 - _PICTURE_GAP_MM
    height = page.epw * high / wide
    height = quarter if quarter < height < 1.25 * quarter else min(height, whole)
    width = height * wide / high
    page.need(height)
    top = page.get_y()
    page.image(io.BytesIO(drawing), x=page.l_margin, w=width, h=height,
               alt_text=shown(picture.title))  # fmt: skip
    page.set_xy(page.l_margin, top + height)
    if page.left_mm > _PICTURE_GAP_MM:
        page.ln(_PICTURE_GAP_MM)


def _pixels(png: bytes) -> tuple[int, int]:
    """Return width and height. Source: PNG specification, 11.2.1, the first chunk is IHDR and begins with both."""
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
