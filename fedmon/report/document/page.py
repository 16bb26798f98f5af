"""The report as one page of HTML that needs nothing else: its charts are data, drawn by the script in it."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import Any

import msgspec
import numpy as np

from fedmon.report.blocks import Floats
from fedmon.report.charts.catalogue import FLOATING
from fedmon.report.charts.chart import Chart, Charts
from fedmon.report.document.model import (
    LONGEST_TEXT,
    Bars,
    Document,
    Drawn,
    Facts,
    Findings,
    Paragraph,
    Part,
    Picture,
    Section,
    TextTable,
    shown,
)
from fedmon.report.findings.case import WORDS, Finding

NUMERIC, WIDE = ' class="n"', ' class="wide"'
_MOST_LETTERS = 60
"""Longer values of facts have a line for themselves."""
_DIGITS = 4
_MOST_BANDS = 2


def html(document: Document) -> Iterator[str]:
    """Return the page piece by piece. All text is escaped, and nothing but the page's own script and style may run."""
    found = [part for section in document.sections for part in section.parts if isinstance(part, Drawn)]
    style, script = _file("page.css"), ""
    if found:
        style += _file("vendor/uPlot.min.css")
        script = f"{_file('vendor/uPlot.iife.min.js')}\n{_file('charts.js')}"
    # The page may load nothing and run nothing else, whatever text found its way into it.
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
        f"{f'; script-src {_hash(script)}' if script else ''}"
    )
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(document.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{_text(document.title)}</h1><p>{_text(document.subtitle)}</p></header>\n<main>\n"
    )
    links = "".join(f'<a href="#s{at}">{_text(one.title)}</a>' for at, one in enumerate(document.sections))
    yield f"<nav>{links}</nav>\n"
    numbered = {id(chart): at for at, chart in enumerate(chart for part in found for chart in part.charts)}
    for at, section in enumerate(document.sections):
        yield from _section(section, at, numbered)
    yield f"</main>\n<footer>{_text(document.header)}</footer>\n"
    if found:
        charts = [chart for part in found for chart in part.charts]
        yield f'<script type="application/json" id="charts">{_data(found[0].of, charts)}</script>\n'
        yield f"<script>{script}</script>\n"
    yield "</body>\n</html>\n"


def _section(section: Section, at: int, numbered: dict[int, int]) -> Iterator[str]:
    title = _text(section.title)
    yield f'<section id="s{at}">'
    yield f"<details><summary>{title}</summary>\n" if section.is_folded else f"<h2>{title}</h2>\n"
    yield from (_part(part, numbered) for part in section.parts)
    yield f"{'</details>' if section.is_folded else ''}</section>\n"


def _part(part: Part, numbered: dict[int, int]) -> str:
    match part:
        case Paragraph():
            return f"<p>{_text(part.text)}</p>\n"
        case Facts():
            rows = "".join(
                f"<div{WIDE if len(value) > _MOST_LETTERS else ''}><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
                for name, value in part.rows
            )
            return f"<dl>{rows}</dl>\n"
        case Bars():
            rows = "".join(
                f'<div><dt>{_text(name)}</dt><dd><meter min="0" max="1" value="{min(1.0, ratio):.4f}"></meter>'
                f"{_text(text)}</dd></div>"
                for name, ratio, text in part.rows
            )
            return f'<dl class="bars">{rows}</dl>\n'
        case Findings():
            return f'<ul class="findings">{"".join(map(_finding, part.findings))}</ul>\n'
        case TextTable():
            return _table(part)
        case Picture():
            data = base64.b64encode(part.png()).decode()
            return f'<figure><img alt="{_text(part.title)}" src="data:image/png;base64,{data}"></figure>\n'
        case Drawn():
            return _charts(part, numbered)


def _charts(part: Drawn, numbered: dict[int, int]) -> str:
    figures = "".join(
        f'<figure data-at="{numbered[id(chart)]}"><figcaption><b>{_text(chart.title)}</b>'
        f"{f'<span>{_text(chart.scale.unit)}</span>' if chart.scale.unit else ''}"
        '<span class="now"></span></figcaption><div class="plot"></div></figure>\n'
        for chart in part.charts
    )
    inside = f'<noscript><p>The charts need JavaScript.</p></noscript><div class="charts">\n{figures}</div>\n'
    if not part.title:
        return inside
    summary = f"{_text(part.title)} ({len(part.charts)} {'chart' if len(part.charts) == 1 else 'charts'})"
    return f"<details><summary>{summary}</summary>\n{inside}</details>\n"


def _finding(finding: Finding) -> str:
    advice = f'<span class="advice">{_text(finding.advice)}</span>' if finding.advice else ""
    return (
        f'<li class="{finding.severity.value}"><span class="mark">{WORDS[finding.severity]}</span>'
        f"<div><b>{_text(finding.title)}.</b> {_text(finding.text)}{advice}</div></li>\n"
    )


def _table(table: TextTable) -> str:
    def cells(tag: str, texts: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{NUMERIC if at in table.numeric else ''}>{_text(text)}</{tag}>" for at, text in enumerate(texts)
        )

    title = f"<h3>{_text(table.title)}</h3>" if table.title else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in table.rows)
    head = f"<thead><tr>{cells('th', table.headers)}</tr></thead>"
    return f'{title}<div class="table"><table>{head}<tbody>\n{body}</tbody></table></div>\n'


def _data(charts: Charts, chosen: Sequence[Chart]) -> str:
    """Return charts as JSON that no markup ends."""
    times = next((chart.x for chart in chosen if not chart.is_over_steps), np.array(charts.span))
    step = float(times[1] - times[0]) if len(times) > 1 else 1.0
    document = {
        "span": charts.span,
        "time": (float(times[0]), step, len(times)),
        "gaps": [(since, until, shown(text, 120)) for since, until, text in charts.gaps],
        "charts": [_chart(chart) for chart in chosen],
    }
    return msgspec.json.encode(document).decode().replace("<", "\\u003c")


def _chart(chart: Chart) -> dict[str, Any]:
    factor = chart.scale.factor
    has_bands = not chart.is_stack and len(chart.lines) <= _MOST_BANDS
    return {
        "lines": [
            {"label": shown(line.label, 60), "values": _numbers(line.values, factor)}
            | (
                {"low": _numbers(line.low, factor), "high": _numbers(line.high, factor)}
                if has_bands and line.low is not None and line.high is not None
                else {}
            )
            for line in chart.lines
        ],
        "limits": [(shown(label, 60), value * factor) for label, value in chart.limits],
        "stack": chart.is_stack,
        "floats": chart.quantity in FLOATING,
        **({"x": chart.x.tolist()} if chart.is_over_steps else {}),
    }


def _numbers(values: Floats, factor: float) -> list[float | int | None]:
    """Return values of a few digits, the shortest way to write them; None is none."""
    with np.errstate(all="ignore"):
        scaled = values * factor
        size = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(scaled))))
        size = np.where(np.isfinite(size), size, 1.0)
        rounded = np.where(np.abs(scaled) < 10.0**_DIGITS, np.round(scaled * size) / size, np.round(scaled))
    return [None if value != value else int(value) if value == int(value) and abs(value) < 1e15 else value  # noqa: PLR0124
            for value in np.where(np.isfinite(rounded), rounded, np.nan).tolist()]  # fmt: skip


@functools.cache
def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source expression of an inline script or style. Source: CSP level 3, "hash-source"."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(text: str) -> str:
    return escape(shown(text, LONGEST_TEXT), quote=True)
