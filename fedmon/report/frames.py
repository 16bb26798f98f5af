"""Recordings as tables: a wide one with a column for each series, and a tidy one with a row for each value."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import NotFoundError
from fedmon.common.metrics.sample import is_user_stream
from fedmon.common.metrics.series import metric_name
from fedmon.report.export import Table, write
from fedmon.report.extra import report_extra
from fedmon.report.selection import Plan, find_job, known_jobs, named, plan
from fedmon.report.source import Paths, Source, opened
from fedmon.report.subject import choose
from fedmon.report.training import COSTS, Trainings, is_reported

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class WideTable:
    """One row for each host and time, one column for each series, and beside each counter its growth a second.

    The first columns are ``host``, ``time`` (UTC) and the labels of the run that have a value; then come the series in
    the order of the table of metrics, then those that it does not know. ``metrics`` are names or globs; ``job`` is a
    job's id: the metrics of its hosts while it ran. Times are Unix seconds and both included. A missing value is null.
    Nothing but names is read before ``batches`` and ``csv``, which can be called again; for a long ``csv``
    separate ``processes`` read, by default as many as pay off. With ``origin`` rows have boot, number and monotonic
    time of their samples (``boot``, ``seq``, ``mono``), and columns without any value are left out.

    Raises NotFoundError for an unknown job, and StorageError.
    """

    is_tidy = False
    name = "wide"

    def __init__(
        self,
        source: Source,
        *,
        metrics: Sequence[str] | None = None,
        job: str | None = None,
        rates: bool = True,
        since_t: float | None = None,
        until_t: float | None = None,
        processes: int | None = None,
        origin: bool = False,
    ) -> None:
        self.source, self._processes = source, processes
        self.plan: Plan = plan(
            source, metrics=metrics, job=job, rates=rates, since_t=since_t, until_t=until_t, origin=origin
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns, in order."""
        with report_extra("a table"):
            from fedmon.report.rows import schema
        return schema(self.plan, is_tidy=self.is_tidy)

    @property
    def rows(self) -> int:
        """The largest possible number of rows."""
        columns = sum(not column.is_rate for column in self.plan.columns)
        return self.plan.rows * (columns if self.is_tidy else 1)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, in order. Raises StorageError."""
        with report_extra("a table"):
            from fedmon.report.rows import read_batches
        return read_batches(self.source, self.plan, is_tidy=self.is_tidy)

    def csv(self) -> Iterator[tuple[int, bytes | memoryview]]:
        """Return the rows as lines of CSV, in order, with how many rows they are. Raises StorageError."""
        with report_extra("a table"):
            from fedmon.report.rows import read_lines
        return read_lines(self.source, self.plan, is_tidy=self.is_tidy, processes=self._processes)


def job_tables(source: Source) -> list[WideTable]:
    """Return all metrics of a job as a table, and those of the tool itself as another."""
    names = {metric_name(name) for key in source.keys for rows in source.readers_of(key) for name in rows.series(key)}
    own = sorted(name for name in names if name.startswith("agent_"))
    found: list[WideTable] = []
    for table_name, metrics in (("all_metrics", sorted(names.difference(own))), ("tool_metrics", own)):
        if metrics or not found:
            found.append(WideTable(source, metrics=metrics, origin=True))
            found[-1].name = table_name
    return found


class TidyTable(WideTable):
    """One row for each value: ``stream``, ``metric``, ``labels`` (as text), ``unit``, ``kind``, ``value``, ``rate``.

    The first columns are those of the wide table. ``rate`` is a counter's growth a second, if ``rates``. Missing values
    have no row. Rows come by host, time, and the order of the columns of the wide table.
    """

    is_tidy = True
    name = "tidy"


def frame(
    source: Source | Paths,
    *,
    metrics: Sequence[str] | None = None,
    job: str | None = None,
    rates: bool = True,
    since_t: float | None = None,
    until_t: float | None = None,
    tidy: bool = False,
) -> pd.DataFrame:
    """Return a table as a data frame of pandas, all of it in memory; see WideTable and TidyTable.

    Missing numbers are NaN. Raises NotFoundError for an unknown job, StorageError, and MissingExtraError.
    """
    with opened(source) as found, report_extra("a data frame"):
        from fedmon.report.export.tables import data_frame

        kind = TidyTable if tidy else WideTable
        return data_frame(kind(found, metrics=metrics, job=job, rates=rates, since_t=since_t, until_t=until_t))


def save(
    source: Source | Paths,
    path: Path | str,
    *,
    format: str | None = None,  # noqa: A002 - what everybody calls it
    metrics: Sequence[str] | None = None,
    job: str | None = None,
    rates: bool = True,
    since_t: float | None = None,
    until_t: float | None = None,
    tidy: bool = False,
    key: str | None = None,
    replace: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write recordings to a file and return its path; the suffix selects the format.

    See `WideTable` for the selection, and `fedmon.report.export.write` for the format. In an HDF5 file the
    table is under ``wide_<key>`` or ``tidy_<key>``; the key is the job's if there is one. ``progress`` is called with 1
    at the end. Raises NotFoundError, InvalidInputError, ConflictError, StorageError and MissingExtraError.
    """
    with opened(source) as found:
        kind = TidyTable if tidy else WideTable
        table = kind(found, metrics=metrics, job=job, rates=rates, since_t=since_t, until_t=until_t)
        check_any(found, [table])
        target = found.target(path)
        write(table, target, format=format, key=key or key_of(found, job), replace=replace)
    if progress is not None:
        progress(1.0)
    return target


def check_any(source: Source, tables: Sequence[Table]) -> None:
    """Raise NotFoundError, with the hosts and jobs that there are, if none of the tables has a row."""
    if not any(table.rows for table in tables):
        hosts, jobs = named([host.name for host in source.hosts]), named(known_jobs(source))
        why = f"no recorded sample matches the selection; hosts: {hosts}; jobs: {jobs}"
        raise NotFoundError(why if source.streams else "the recordings hold no sample")


def key_of(source: Source, job: str | None) -> str:
    """Return the key of a source's table: that of its job, or "all" without one."""
    if job is not None:
        return find_job(source, job)
    return source.job_ids[0] if len(source.job_ids) == 1 else "all"


def plot(
    source: Source | Paths,
    folder: Path | str,
    *,
    job: str | None = None,
    nodes: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    since_t: float | None = None,
    until_t: float | None = None,
    per_node: bool = True,
    combined: bool = True,
    kind: str = "png",
    progress: Callable[[float], object] | None = None,
) -> list[Path]:
    """Draw metrics into a folder, a file for each figure; returns the files, in the order of reading.

    ``job``, ``nodes`` (ids or names), ``metrics`` (names or globs) and Unix times choose a part. ``per_node`` and
    ``combined`` choose both kinds of plots, ``kind`` is png, svg or pdf. ``progress`` is called with 1 at the end.
    Raises NotFoundError for an unknown job or node and if there is nothing to plot, InvalidInputError for another kind
    or a bare text of metrics, MissingExtraError without matplotlib, StorageError.
    """
    with opened(source) as found, report_extra("a plot"):
        from fedmon.report.charts import Choice, plot_charts

        subject = choose(found, job=job, nodes=nodes, since_t=since_t, until_t=until_t)
        choice = Choice(metrics=metrics, per_node=per_node, combined=combined)
        written = [path for path, _ in plot_charts(subject, choice, folder, kind=kind)]
    if progress is not None:
        progress(1.0)
    return written


_HEAD = ("group", "round", "node", "number")
_TAKEN = frozenset({*_HEAD, "rows", *COSTS.values()})
"""Columns of learning curves that are not values."""


class LearningCurves:
    """The learning curves of a recording; a notebook shows them as pictures."""

    def __init__(self, source: Source, reported: Trainings) -> None:
        self._source, self._reported, self.trainings = source, reported, reported.all()

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each group, round and node: its values, and ``seconds``, ``joules``, ``bytes``, ``rows``.

        Outside a group, ``number`` tells the curves of a node apart; each run that begins again has another.
        A value that a plan called like one of these columns is ``value_rows`` and the like. Raises MissingExtraError.
        """
        with report_extra("a data frame"):
            import pandas as pd
        names = {host.node_id: host.name for host in self._source.hosts}
        rows: dict[tuple[str, float, str, int], dict[str, Any]] = {}
        for group, curves, weights in self.trainings:
            for name, each in curves.items():
                for node_id, number, steps, values in each:
                    for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                        row = rows.setdefault((group, step, names[node_id], number), {})
                        row[COSTS.get(name) or (f"value_{name}" if name in _TAKEN else name)] = value
                        row["rows"] = weights.get(node_id)
        return pd.DataFrame([dict(zip(_HEAD, key, strict=True)) | row for key, row in sorted(rows.items())])

    def _repr_html_(self) -> str:
        with report_extra("a plot"):
            from fedmon.report.bins import Bins
            from fedmon.report.charts import charts_of
            from fedmon.report.charts.draw import drawn
        subject = choose(self._source)
        bins = Bins(subject.span)
        bins.trainings = self._reported
        found = charts_of(bins, subject)
        pictures = [
            f'<img alt="{escape(one.title)}" src="data:image/png;base64,'
            f'{base64.b64encode(drawn(one, found, "png")).decode()}">'
            for one in (*found.first, *found.rest)
            if one.is_over_steps
        ]
        return "".join(pictures) or "<p>No program reported values at two rounds or steps.</p>"


def learning_curves(source: Source | Paths) -> LearningCurves:
    """Return the values that programs and runs of plans reported, by round or step. Raises StorageError."""
    reported = Trainings()
    with opened(source) as found:
        streams = {(one.node_id, one.stream) for one in found.streams if is_user_stream(one.stream)}
        for block in found.blocks(streams=streams, series=is_reported):
            reported.add(block)
    return LearningCurves(found, reported)
