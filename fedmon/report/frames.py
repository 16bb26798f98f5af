"""Recordings as tables: a wide one with a column for each series, and a tidy one with a row for each value.

A row of the wide table is one host at one time. Hosts come in natural order of their names, the rows of each by time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedmon.report.extra import report_extra
from fedmon.report.selection import Plan, Selection, plan
from fedmon.report.source import Source

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class WideTable:
    """One row for each host and time, one column for each series, and beside each counter its growth a second.

    The first columns are ``host``, ``time`` (UTC) and the labels of the run that have a value; then come the series in
    the order of the table of metrics, then those that it does not know. ``metrics`` are names or globs; ``job`` is a
    job's id: of its hosts, what was measured while it ran. Times are Unix seconds and both included. A value that is
    not there is null. Nothing but names is read before ``batches``, and that can be called again; a long table is then
    read by ``processes`` of its own, as many as pay unless it is said.

    Raises NotFoundError for a job that is not there, and StorageError.
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
    ) -> None:
        self.source, self._processes = source, processes
        selection = Selection(
            metrics=None if metrics is None else tuple(metrics), job=job, rates=rates, since_t=since_t, until_t=until_t
        )
        self.plan: Plan = plan(source, selection)

    @property
    def schema(self) -> pa.Schema:
        """The columns, in order."""
        with report_extra("a table"):
            from fedmon.report.record_batches import schema
        return schema(self.plan.layout, is_tidy=self.is_tidy)

    @property
    def rows(self) -> int:
        """How many rows there will be at most."""
        columns = sum(not column.is_rate for column in self.plan.layout.columns)
        return self.plan.rows * (columns if self.is_tidy else 1)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, in order; a long table is read by several processes. Raises StorageError."""
        with report_extra("a table"):
            from fedmon.report.pieces import Form
            from fedmon.report.reading import read_pieces
        for piece in read_pieces(
            self.source, self.plan, is_tidy=self.is_tidy, form=Form.BATCHES, processes=self._processes
        ):
            if isinstance(piece, list):
                yield from piece

    def csv(self) -> Iterator[tuple[int, memoryview]]:
        """Return the rows as lines of CSV, in order, with how many rows they are. Raises StorageError."""
        with report_extra("a table"):
            from fedmon.report.pieces import Form
            from fedmon.report.reading import read_pieces
        for piece in read_pieces(
            self.source, self.plan, is_tidy=self.is_tidy, form=Form.CSV, processes=self._processes
        ):
            if not isinstance(piece, list):
                yield piece.rows, piece.text


class TidyTable(WideTable):
    """One row for each value: ``stream``, ``metric``, ``labels`` (as text), ``unit``, ``kind``, ``value``, ``rate``.

    In front stand the same columns as in the wide table. ``rate`` is a counter's growth a second; it is left away
    without ``rates``. Values that are not there have no row. Rows come by host, time, and the order of the columns of
    the wide table.
    """

    is_tidy = True
    name = "tidy"


def frame(
    source: Source,
    *,
    metrics: Sequence[str] | None = None,
    job: str | None = None,
    rates: bool = True,
    since_t: float | None = None,
    until_t: float | None = None,
    tidy: bool = False,
) -> pd.DataFrame:
    """Return a table as a data frame of pandas, all of it in memory; see WideTable and TidyTable.

    Missing numbers are NaN. Raises NotFoundError for a job that is not there, StorageError, and MissingExtraError.
    """
    kind = TidyTable if tidy else WideTable
    table = kind(source, metrics=metrics, job=job, rates=rates, since_t=since_t, until_t=until_t)
    with report_extra("a data frame"):
        from fedmon.report.data_frame import data_frame
    return data_frame(table)
