"""The report: its document, made once for every format, and its files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon import __version__
from fedmon.common.errors import InvalidInputError
from fedmon.common.files import replacing
from fedmon.common.ids import made_at
from fedmon.common.metrics.table import MISSING
from fedmon.common.text import joined, moment, size
from fedmon.report.amounts import significant
from fedmon.report.document import summary
from fedmon.report.document.model import Bars, Document, Drawn, Facts, Findings, Part, Section, TextTable, shown
from fedmon.report.extra import report_extra
from fedmon.report.findings import find
from fedmon.report.findings.case import Case, Finding
from fedmon.report.findings.completeness import main_streams
from fedmon.report.source import Paths, Source, opened, told_number
from fedmon.report.subject import Subject, choose

if TYPE_CHECKING:
    from fedmon.report.charts import Chart, Charts

_GROUPS = {"job": "The job", "user": "Values of the program", "gpu": "GPUs", "cpu": "CPUs",
           "infiniband": "InfiniBand", "numa": "NUMA", "agent": "The tool itself"}  # fmt: skip
_ON_PAGE_1 = 2
_MOST_ROWS, _MOST_VALUES = 60, 200


def write(
    source: Source | Paths,
    *,
    html: Path | str | None = None,
    pdf: Path | str | None = None,
    job: str | None = None,
    nodes: Sequence[str] = (),
    since_t: float | None = None,
    until_t: float | None = None,
    progress: Callable[[float], object] | None = None,
) -> list[Path]:
    """Write the report as a page of HTML, as a PDF, or both; returns the written files.

    `subject.choose` chooses its subject. A file that is there is replaced once the new one is whole.
    ``progress`` is called with 1 at the end. Raises NotFoundError, InvalidInputError, StorageError, and
    an error that names the missing library.
    """
    if html is None and pdf is None:
        raise InvalidInputError("name a file for the report: HTML, PDF, or both")
    with opened(source) as found:
        subject = choose(found, job=job, nodes=nodes, since_t=since_t, until_t=until_t)
        files = write_subject(subject, html=html, pdf=pdf)[2]
    if progress is not None:
        progress(1.0)
    return files


def write_subject(
    subject: Subject, *, html: Path | str | None = None, pdf: Path | str | None = None
) -> tuple[Case, list[Finding], list[Path]]:
    """Write the report of a subject; also returns its findings. Raises as `write`."""
    with report_extra("a report"):
        from fedmon.report.bins import Bins
        from fedmon.report.charts import charts_of, is_shown

    # Before an hour of reading, not after it.
    page, pages = (None if path is None else subject.source.target(path) for path in (html, pdf))
    bins = Bins(subject.span, wanted=is_shown)
    case = subject.read([bins])
    findings = find(case)
    document = build(case, findings, charts_of(bins, subject), made_t=time.time())
    if page is not None:
        from fedmon.report.document.page import html as page_of

        with replacing(page) as new, new.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(page_of(document))
    if pages is not None:
        with report_extra("a PDF"):
            from fedmon.report.document.pdf import write_pdf

        with replacing(pages) as new:
            write_pdf(document, new)
    return case, findings, [path for path in (page, pages) if path is not None]


def build(case: Case, findings: Sequence[Finding], charts: Charts, *, made_t: float) -> Document:
    """Return the document. Empty sections fall out; ``made_t`` is the Unix time that the report shows as its own."""
    first = (summary.about(case), *_filled(summary.bars(findings)), *_drawn(charts, charts.first[:_ON_PAGE_1]))
    measured = (Facts(rows=_collected(case)), *_filled(_absent(case)), *_filled(_marks(case)))
    sections = [
        Section(title="Findings", parts=(*first, Findings(findings=tuple(findings)))),
        Section(title="Over time", parts=tuple(_drawn(charts, charts.first[_ON_PAGE_1:]))),
        Section(title="Nodes", parts=(summary.node_table(case),) if case.nodes else ()),
        Section(title="Values of the program", parts=_filled(user_table(case))),
        Section(title="Hardware", parts=(hardware_table(case),) if case.nodes else ()),
        Section(title="More charts", parts=tuple(_more(charts)), is_folded=True),
        Section(title="How it was measured", parts=measured, is_folded=True),
    ]
    return Document(
        title=summary.title(case),
        subtitle=summary.subtitle(case),
        header=summary.header(case, made_t=made_t),
        sections=tuple(section for section in sections if section.parts),
    )


def _filled(table: Bars | TextTable) -> tuple[Part, ...]:
    return (table,) if table.rows else ()


def _drawn(charts: Charts, chosen: Sequence[Chart]) -> list[Part]:
    return [Drawn(of=charts, charts=tuple(chosen))] if chosen else []


def _more(charts: Charts) -> list[Part]:
    """Return the charts that are not shown first, by subject."""
    groups: dict[str, list[Chart]] = {}
    for chart in charts.rest:
        groups.setdefault(chart.group.value, []).append(chart)
    return [
        Drawn(of=charts, charts=tuple(found), title=_GROUPS.get(group, group.capitalize()))
        for group, found in groups.items()
    ]


def _collected(case: Case) -> tuple[tuple[str, str], ...]:
    streams = [stream for _, stream in main_streams(case)]
    intervals = sorted(one.interval_s for one in streams if one.interval_s is not None)
    tools = {str(node.host.tool["version"]) for node in case.nodes if node.host.tool.get("version")}
    rows: list[tuple[str, str]] = [("Measured by", f"fedmon {', '.join(sorted(tools)) or 'of unknown version'}")]
    rows += [("Written by", f"fedmon {__version__}"), ("Samples", f"{sum(one.samples for one in streams)}")]
    if intervals:
        low, high = significant(intervals[0]), significant(intervals[-1])
        rows.append(("Interval", f"{low} s" if low == high else f"{low} to {high} s"))
    if clocks := _clocks(case):
        rows.append(("Clocks", clocks))
    return tuple((name, shown(text)) for name, text in rows)


def _clocks(case: Case) -> str:
    """Return how far the clocks of the hosts differ, and whether one was set; empty if neither is known."""
    offsets = [offset_s for node in case.nodes
               if (offset_s := told_number(node.host.tool, "clock_offset_s")) is not None]  # fmt: skip
    steps = {node.name: max(abs(step.by_s) for step in found) for node in case.nodes
             if (found := [step for stream in node.streams.values() for step in stream.clock_steps])}  # fmt: skip
    told = []
    if len(offsets) > 1:
        told.append(f"{significant(max(offsets) - min(offsets))} s apart")
    elif offsets:
        told.append(f"{significant(abs(offsets[0]))} s off that of the file server")
    if steps:
        told.append(f"set by {significant(max(steps.values()))} s while samples were taken on {joined([*steps])}:"
                    " durations and rates are right, as they use another clock")  # fmt: skip
    return "; ".join(told)


def _absent(case: Case) -> TextTable:
    """Return the metrics that were not measured, by reason."""
    by_reason: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for node in case.nodes:
        for metric, reason in node.host.capabilities.items():
            if reason and not node.all(metric):
                metrics, nodes = by_reason.setdefault(str(reason), ({}, {}))
                metrics[metric], nodes[node.name] = None, None
    whole = len(case.nodes)
    rows = [
        (
            shown(reason, 240),
            joined([shown(name, 80) for name in metrics], most=6),
            "all" if len(nodes) == whole else joined(list(nodes), most=4),
        )
        for reason, (metrics, nodes) in by_reason.items()
    ]
    return TextTable(title="Not measured, by reason", headers=("Reason", "Metrics", "Nodes"),
                     rows=tuple(rows[:_MOST_ROWS]))  # fmt: skip


def _marks(case: Case) -> TextTable:
    names = {node.host.node_id: node.name for node in case.nodes}
    rows = [(moment(mark.t), shown(names.get(mark.node_id, mark.node_id), 60), shown(mark.text, 240))
            for mark in case.marks]  # fmt: skip
    return TextTable(title="Events", headers=("Time", "Node", "Event"), rows=tuple(rows)).cut(_MOST_ROWS, "event")


def user_table(case: Case) -> TextTable:
    """Return one row for each node, job and value that a program reported, the runs of one training together."""
    found: dict[tuple[str, str], tuple[float, str, str]] = {}
    for node in case.nodes:
        values, steps = ({(labels.get("group"), labels.get("name", ""), labels.get("job")): total
                          for labels, total in node.all(metric)} for metric in ("user_value", "user_step"))  # fmt: skip
        for each in values | steps:
            group, name, job = each
            value, step = values.get(each), steps.get(each)
            last_t = max(one.last_t for one in (value, step) if one is not None)
            # Runs of plans are many: of those outside of groups the last is told.
            of_job = f"{name} (job {job})" if job and job != case.job and not made_at(job) else name
            key = f"Training {group}: {name}" if group else of_job, node.name
            if key not in found or last_t > found[key][0]:
                # A step without a value at its time is of one that was not finite.
                last = "not finite" if value is None or value.last_t < last_t else significant(value.last, 4)
                found[key] = last_t, last, MISSING if step is None else significant(step.last)
    rows = tuple((shown(name, 120), shown(where, 60), *told) for (name, where), (_, *told) in found.items())
    return TextTable(headers=("Name", "Node", "Last value", "Last step"), rows=rows,
                     numeric=frozenset({2, 3})).cut(_MOST_VALUES, "row")  # fmt: skip


def hardware_table(case: Case) -> TextTable:
    """Return the hardware of the nodes, one row for equal ones."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node in case.nodes:
        alike.setdefault(_hardware(node.host.hardware), []).append(shown(node.name, 60))
    rows = tuple((joined(names, most=8, last=", "), *parts) for parts, names in alike.items())
    return TextTable(headers=("Nodes", "Processors", "Memory", "GPUs", "System"), rows=rows)


def _hardware(told: Mapping[str, Any]) -> tuple[str, ...]:
    if not told:
        return ("not recorded", *[MISSING] * 3)
    counts = [f"{told[name]} {word if told[name] != 1 else word[:-1]}" for name, word in
              (("sockets", "sockets"), ("cores", "cores"), ("threads", "threads")) if told.get(name)]  # fmt: skip
    processor = ", ".join([str(told.get("model") or told.get("architecture") or "unknown"), *counts])
    system = [
        told.get("os"),
        told.get("kernel"),
        told.get("virtualisation"),
        "simulated" if told.get("simulated") else "",
    ]
    return tuple(
        shown(text, 240)
        for text in (
            processor,
            _size(told, "memory_bytes"),
            _gpu_models(told),
            ", ".join(str(one) for one in system if one),
        )
    )


def _gpu_models(told: Mapping[str, Any]) -> str:
    gpus = told.get("gpus")
    if not isinstance(gpus, list):
        return "unknown"
    models = Counter(
        f"{gpu.get('model') or 'GPU'} {_size(gpu, 'memory_bytes')}".removesuffix(f" {MISSING}")
        for gpu in gpus
        if isinstance(gpu, dict)
    )
    return ", ".join(f"{amount} x {model}" for model, amount in models.items()) or "none"


def _size(told: Mapping[str, Any], name: str) -> str:
    size_bytes = told_number(told, name)
    return MISSING if size_bytes is None else size(size_bytes)
