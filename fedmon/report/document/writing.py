"""Reads a source once and writes the report of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import replacing, target_of
from fedmon.report.document.model import Document
from fedmon.report.document.steps import Steps
from fedmon.report.extra import report_extra
from fedmon.report.findings import Case, Finding, find
from fedmon.report.seldom_collected import seldom_collected
from fedmon.report.source import Source
from fedmon.report.subject import Subject, choose

_READING = 0.5
"""The share of the work that reading is, for the progress; drawing is the rest."""


def write(
    source: Source,
    *,
    html: Path | None = None,
    pdf: Path | None = None,
    job: str | None = None,
    nodes: Sequence[str] = (),
    since_t: float | None = None,
    until_t: float | None = None,
    progress: Callable[[float], object] | None = None,
) -> list[Path]:
    """Write the report as a page of HTML, as a PDF, or both; returns what was written.

    What it is about is chosen as `subject.choose` says. A file that is there is replaced once the new one is whole.
    ``progress`` is told the share of the work that is done. Raises NotFoundError, InvalidInputError, StorageError, and
    an error that says what to install where a library is missing.
    """
    if html is None and pdf is None:
        raise InvalidInputError("say where the report goes: a file of HTML, a PDF, or both")
    subject = choose(source, job=job, nodes=nodes, since_t=since_t, until_t=until_t)
    return write_subject(subject, html=html, pdf=pdf, progress=progress)[2]


def write_subject(
    subject: Subject,
    *,
    html: Path | None = None,
    pdf: Path | None = None,
    progress: Callable[[float], object] | None = None,
) -> tuple[Case, list[Finding], list[Path]]:
    """Write the report of what was chosen; returns also what it says. Raises as `write`."""
    with report_extra("a report"):
        from fedmon.report.bins import Bins
        from fedmon.report.document.build import build
        from fedmon.report.document.pictures import pictures
        from fedmon.report.plots import is_shown

    files = [path for path in (html, pdf) if path is not None]
    for path in files:
        target_of(path)  # before an hour of reading, not after it
    steps = Steps(progress or (lambda _share: None))
    bins = Bins(subject.span, wanted=is_shown)
    case = subject.read([bins], steps.part(_READING))
    findings = find(case)
    drawn = pictures(bins, subject.source, subject.job)
    document = build(case, findings, drawn, made_t=time.time())
    written: list[Path] = []
    on_picture = steps.counted(1 - _READING, document.pictures * len(files))
    with seldom_collected():
        if html is not None:
            written.append(_write_html(document, html, on_picture))
        if pdf is not None:
            written.append(_write_pdf(document, pdf, on_picture))
    steps.done()
    return case, findings, written


def _write_html(document: Document, path: Path, on_picture: Callable[[], object]) -> Path:
    from fedmon.report.document.html import html

    with replacing(path) as new, new.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(html(document, on_picture=on_picture))
    return path


def _write_pdf(document: Document, path: Path, on_picture: Callable[[], object]) -> Path:
    with report_extra("a PDF"):
        from fedmon.report.document.pdf import write_pdf

    with replacing(path) as new:
        # Where there is place for a file there is for its fonts; a pipe has no folder for ours.
        beside = path.parent if path.is_file() or not path.exists() else None
        write_pdf(document, new, on_picture=on_picture, beside=beside)
    return path
