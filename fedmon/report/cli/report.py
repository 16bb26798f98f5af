"""`fedmon report`: a summary on the terminal, a page with every chart, or a PDF."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fedmon.common.errors import InvalidInputError
from fedmon.common.options import JobOption, JsonOption, NodesOption, RecordingsArgument, SinceOption, UntilOption, each
from fedmon.common.text import sound
from fedmon.report.cli.inputs import times

if TYPE_CHECKING:
    from fedmon.report.findings import Case, Finding

_WIDEST = 100


def report(
    recording: RecordingsArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page to write, such as job.html.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="The PDF to write, such as job.pdf.")] = None,
    job: JobOption = None,
    node: NodesOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: Annotated[bool, typer.Option("--text", help="Write no file; the summary is all.")] = False,
    json: JsonOption = False,
) -> None:
    """Summarise a job or a recording.

    The page is written to the current folder, named after the job, unless --output or --pdf is given.
    """
    if text and (output is not None or pdf is not None):
        raise InvalidInputError("--text writes no file: leave it out, or leave out --output and --pdf")
    if output is not None and pdf is not None and output.resolve() == pdf.resolve():
        raise InvalidInputError(f"{output} cannot be both the page and the PDF: name two files")
    if (output is not None and output.suffix.lower() == ".pdf") or (pdf is not None and pdf.suffix.lower() == ".html"):
        raise InvalidInputError("--output writes a page of HTML, --pdf a PDF: name their files so")
    since_t, until_t = times(since, until)
    from fedmon.report.extra import report_extra

    with report_extra("a report"):
        from fedmon.report.source import Source
        from fedmon.report.subject import choose

    with Source(recording) as source:
        subject = choose(source, job=job, nodes=tuple(each(node) or ()), since_t=since_t, until_t=until_t)
        if output is None and pdf is None and not text and not json:
            output = Path(f"job-report-{subject.job}.html" if subject.job is not None else "fedmon-report.html")
        if output is not None or pdf is not None:
            from fedmon.report.document.report import write_subject

            case, findings, written = write_subject(subject, html=output, pdf=pdf)
        else:
            from fedmon.report.findings import find

            case, written = subject.read(), []
            findings = find(case)
    _show(case, findings, written, as_json=json)


def _show(case: Case, findings: list[Finding], written: list[Path], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(_document(case, findings, written)).decode() + "\n")
        return
    from fedmon.common.log import escape_control
    from fedmon.report.document.summary import summary

    width = min(_WIDEST, shutil.get_terminal_size((80, 24)).columns)
    shown = escape_control(summary(case, findings, width=width), keep="\n")
    files = "".join(f"\nwritten: {path}" for path in written)
    sys.stdout.write(f"{shown}\n{files}\n" if files else f"{shown}\n")


def _document(case: Case, findings: list[Finding], written: list[Path]) -> dict[str, Any]:
    span = case.span
    return {
        "job": case.job,
        "jobs": case.jobs,
        "nodes": [node.name for node in case.nodes],
        "since_t": span[0] if span is not None else None,
        "until_t": span[1] if span is not None else None,
        "findings": findings,
        "written": [sound(str(path)) for path in written],
    }
