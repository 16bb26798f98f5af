"""Puts a report together, the same for every way of writing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedmon.report.document import about
from fedmon.report.document.method import method, versions
from fedmon.report.document.model import Document, Findings, Paragraph, Part, Picture, Section
from fedmon.report.document.nodes import hardware_table, job_table, node_table
from fedmon.report.document.values import user_table, value_table
from fedmon.report.findings import Case, Finding, Severity


def build(
    case: Case, findings: Sequence[Finding], pictures: Iterable[tuple[str, Sequence[Picture]]], *, made_t: float
) -> Document:
    """Return the document; ``pictures`` are groups of drawings, each with its heading. Empty sections fall out.

    ``made_t`` is the Unix time that the report shows as its own.
    """
    sections = [
        Section(title="What happened", parts=_first_page(case, findings)),
        Section(title="Nodes", parts=(node_table(case),) if case.nodes else ()),
        *_jobs(case),
        *_program(case),
        Section(title="Hardware", parts=(hardware_table(case),) if case.nodes else ()),
        *_pictures(pictures),
        *_values(case),
        Section(title="How it was measured", parts=tuple(method(case, findings))),
        Section(title="Versions", parts=(versions(case),)),
    ]
    return Document(
        title=about.title(case),
        subtitle=about.subtitle(case),
        header=about.header(case, made_t=made_t),
        sections=tuple(section for section in sections if section.parts),
    )


def _first_page(case: Case, findings: Sequence[Finding]) -> tuple[Part, ...]:
    known = tuple(one for one in findings if one.severity is not Severity.UNKNOWN)
    unknown = tuple(one for one in findings if one.severity is Severity.UNKNOWN)
    parts: list[Part] = [about.about(case), Findings(findings=known)]
    if unknown:
        parts.append(Findings(findings=unknown))
    return tuple(parts)


def _jobs(case: Case) -> list[Section]:
    if case.job is not None or not case.jobs:
        return []
    table = job_table(case)
    return [Section(title="Jobs", parts=(table,))] if table.rows else []


def _program(case: Case) -> list[Section]:
    table = user_table(case)
    return [Section(title="What the program reported", parts=(table,))] if table.rows else []


def _pictures(groups: Iterable[tuple[str, Sequence[Picture]]]) -> list[Section]:
    return [Section(title=title, parts=tuple(drawings)) for title, drawings in groups if drawings]


def _values(case: Case) -> list[Section]:
    table, left_out = value_table(case)
    if not table.rows:
        return []
    text = (
        "Of a counter the mean is its growth a second and the sum how much it grew; of all else the mean is weighted by"
        " time and the last value follows. Means of several nodes are means of their means."
    )
    if left_out:
        text += f" {left_out} more series are in the recording; 'fedmon export' writes all of them."
    return [Section(title="Everything in figures", parts=(Paragraph(text=text, quiet=True), table))]
