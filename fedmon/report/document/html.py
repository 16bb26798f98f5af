"""The report as one page of HTML that needs nothing else: no script, no font, no address."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from html import escape

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
from fedmon.report.document.style import COLOURS, STYLE, WORDS
from fedmon.report.findings.finding import Finding

QUIET, NUMERIC = ' class="quiet"', ' class="n"'
# The page may load nothing and run nothing, whatever text found its way into it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def html(document: Document, *, on_picture: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Return the page piece by piece; ``on_picture`` is called after each drawing. All text is escaped."""
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{_text(document.title)}</h1><p>{_text(document.subtitle)}</p></header>\n<main>\n"
    )
    if len(document.sections) > 3:
        links = "".join(f'<a href="#s{at}">{_text(one.title)}</a>' for at, one in enumerate(document.sections))
        yield f"<nav>{links}</nav>\n"
    for at, section in enumerate(document.sections):
        yield from _section(section, at, on_picture)
    yield f"</main>\n<footer>{_text(document.header)}</footer>\n</body>\n</html>\n"


def _section(section: Section, at: int, on_picture: Callable[[], object]) -> Iterator[str]:
    yield f'<section id="s{at}"><h2>{_text(section.title)}</h2>\n'
    is_open = False
    for part in section.parts:
        if isinstance(part, Picture) != is_open:
            yield "</div>\n" if is_open else '<div class="pictures">\n'
            is_open = not is_open
        yield _part(part)
        if isinstance(part, Picture):
            on_picture()
    yield ("</div>\n" if is_open else "") + "</section>\n"


def _part(part: Part) -> str:
    match part:
        case Paragraph():
            return f"<p{QUIET if part.quiet else ''}>{_text(part.text)}</p>\n"
        case Facts():
            rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in part.rows)
            return f"<dl>{rows}</dl>\n"
        case Findings():
            return f'<ul class="findings">{"".join(_finding(one, part.details) for one in part.findings)}</ul>\n'
        case Table():
            return _table(part)
        case Picture():
            data = base64.b64encode(part.png()).decode()
            return (
                f'<figure><img alt="{_text(part.title)}" loading="lazy" src="data:image/png;base64,{data}"></figure>\n'
            )


def _finding(finding: Finding, details: bool) -> str:  # noqa: FBT001 - one of two ways
    colour = COLOURS[finding.severity]
    how = f'<span class="how">How: {_text(finding.how)}.</span>' if details and finding.how else ""
    advice = f'<span class="advice">{_text(finding.advice)}</span>' if finding.advice else ""
    return (
        f'<li class="{finding.severity.value}"><span class="mark" style="background:{colour}">'
        f"{WORDS[finding.severity]}</span><div><b>{_text(finding.title)}.</b> {_text(finding.text)}{advice}{how}</div>"
        "</li>\n"
    )


def _table(table: Table) -> str:
    def cells(tag: str, texts: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{NUMERIC if at in table.numeric else ''}>{_text(text)}</{tag}>" for at, text in enumerate(texts)
        )

    title = f"<h3>{_text(table.title)}</h3>" if table.title else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in table.rows)
    head = f"<thead><tr>{cells('th', table.headers)}</tr></thead>"
    return f'{title}<div class="table"><table>{head}<tbody>\n{body}</tbody></table></div>\n'


def _text(text: str) -> str:
    return escape(shown(text, LONGEST_TEXT), quote=True)
