"""The report as a PDF on A4, whose text can be searched."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fpdf import FPDF, Align, XPos, YPos
from fpdf.enums import MethodReturnValue

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
from fedmon.report.document.style import COLOURS, WORDS
from fedmon.report.findings.finding import Finding

_SIZE = 7.5
_LINE_MM = 3.6
_PAD_MM = 1.2
_LOOKED_AT = 60
"""Rows that decide how wide columns are: measuring thousands takes longer than drawing them."""

STYLES = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf", "I": "DejaVuSans-Oblique.ttf"}
_LAST_RESORT = "LastResortHE-Regular.ttf"

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


def font_folder() -> Path:
    """Return where matplotlib keeps its fonts."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def write_placeholders(letters: Iterable[int], path: Path) -> bool:
    """Write a font with a placeholder for each of these code points; False where there are none to take.

    The font has one for every code point there is: the part of it that is needed is a thousandth, and is used at once.
    """
    from fontTools.subset import Options, Subsetter  # type: ignore[import-untyped] # it has no types
    from fontTools.ttLib import TTFont  # type: ignore[import-untyped] # it has no types

    whole = font_folder() / _LAST_RESORT
    if not whole.exists():
        return False
    options = Options()
    options.drop_tables = [*options.drop_tables, "FFTM"]
    with TTFont(whole, lazy=True) as font:
        subsetter = Subsetter(options)
        subsetter.populate(unicodes=letters)
        subsetter.subset(font)
        font.save(path)
    return True


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
