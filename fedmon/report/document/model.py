"""The document of a report, for every format: sections of paragraphs, facts, findings, tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fedmon.common.log import escape_control
from fedmon.common.text import MISSING, plural, shorten, sound

if TYPE_CHECKING:
    from fedmon.report.charts.chart import Chart, Charts
    from fedmon.report.findings.case import Finding

LONGEST = 400
"""Most letters shown of one name or reason: one of megabytes must not fill the report."""
LONGEST_TEXT = 4000
"""Most letters of one paragraph, which holds several of them."""


class Paragraph(msgspec.Struct, frozen=True, kw_only=True):
    """A text."""

    text: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Names and their values."""

    rows: tuple[tuple[str, str], ...]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings in this order."""

    findings: tuple[Finding, ...]


class TextTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of texts under headers; the columns numbered in ``numeric`` are set to the right."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    title: str = ""

    def cut(self, most: int, row: str) -> TextTable:
        """Return the first ``most`` rows; if there are more, the title says so, in the word for a ``row``."""
        if len(self.rows) <= most:
            return self
        title = f"The first {most} of {plural(len(self.rows), row)}"
        return msgspec.structs.replace(self, rows=self.rows[:most], title=title)


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A drawing: PNG, made when it is asked for, with a description for readers who cannot see it."""

    title: str
    png: Callable[[], bytes]


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a whole: a name, the share, and both in words."""

    rows: tuple[tuple[str, float, str], ...]


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """Some charts out of all; those with a title are folded under it."""

    of: Charts
    charts: tuple[Chart, ...]
    title: str = ""


Part: TypeAlias = Paragraph | Facts | Findings | TextTable | Picture | Bars | Drawn


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Parts under a heading; a folded one is in the page alone."""

    title: str
    parts: tuple[Part, ...]
    is_folded: bool = False


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report. ``header`` stands on top of every page."""

    title: str
    subtitle: str
    header: str
    sections: tuple[Section, ...]


def shown(value: object, longest: int = LONGEST) -> str:
    """Return a value as one visible line of bounded length; a dash for nothing."""
    return shorten(sound(escape_control(str(value))), longest) if value not in (None, "") else MISSING
