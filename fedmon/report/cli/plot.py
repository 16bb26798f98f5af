"""`fedmon plot`: charts of metrics, a file each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from fedmon.common.errors import NotFoundError
from fedmon.common.log import escape_control
from fedmon.common.options import (
    JobOption,
    JsonOption,
    MetricsOption,
    NodesOption,
    RecordingsArgument,
    SinceOption,
    UntilOption,
    each,
)
from fedmon.common.text import sound
from fedmon.report.cli.inputs import times
from fedmon.report.extra import report_extra

FigureFormat = Literal["png", "svg", "pdf"]


def plot(
    recording: RecordingsArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the files; made if missing.")],
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="Only of this group, such as cpu; may be repeated.")
    ] = None,
    metric: MetricsOption = None,
    node: NodesOption = None,
    job: JobOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    per_node: Annotated[bool, typer.Option("--per-node", help="Only plots with a line for each node.")] = False,
    combined: Annotated[bool, typer.Option("--combined", help="Only plots of all nodes together.")] = False,
    zeros: Annotated[bool, typer.Option("--zeros", help="Also plot constant series, such as errors.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every chart, not only the 12 main ones.")] = False,
    kind: Annotated[FigureFormat, typer.Option("--format", "-f", help="The kind of the files.")] = "png",
    json: JsonOption = False,
) -> None:
    """Draw charts of a recording, a file each: the 12 main ones, unless you choose."""
    since_t, until_t = times(since, until)
    with report_extra("a plot"):
        from fedmon.report.charts import Choice, Group, plot_charts
        from fedmon.report.source import Source
        from fedmon.report.subject import choose

        known = {one.value: one for one in Group}
        if unknown := [name for name in group or () if name not in known]:
            raise NotFoundError(f"unknown group {unknown[0]!r} of plots; the groups are: {', '.join(known)}")
        choice = Choice(
            groups=frozenset(known[name] for name in group) if group else None,
            metrics=metric or None,
            per_node=per_node or not combined,
            combined=combined or not per_node,
            zeros=zeros,
        )
        with Source(recording) as source:
            subject = choose(source, job=job, nodes=tuple(each(node) or ()), since_t=since_t, until_t=until_t)
            is_chosen = bool(everything or zeros or group or metric or per_node or combined)
            written = plot_charts(subject, choice, output, everything=is_chosen, kind=kind)
    if json:
        rows = [
            {"path": sound(str(path)), "title": one.title, "group": one.group.value, "combined": one.is_combined}
            for path, one in written
        ]
        sys.stdout.write(msgspec.json.encode({"plots": rows}).decode() + "\n")
        return
    for path, one in written:
        sys.stdout.write(escape_control(f"{path}  {one.title}") + "\n")
