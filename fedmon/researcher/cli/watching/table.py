"""A table that fits its screen: columns give way when it is narrow, and the best rows when it is low."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fedmon.researcher.cli.watching.column import Cell

GAP = 2


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one row is about, and its cells; ``key`` keeps rows of equal weight in their order."""

    key: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def weight(self) -> tuple[int, float]:
        """How bad the row is: by its worst grade, then by how near a value is to its worst.

        In steps of a tenth, so that rows do not change places with every sample.
        """
        return max(cell.grade for cell in self.cells), round(max(cell.weight for cell in self.cells), 1)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Headers with the order in which columns give way (the highest first), and rows. The first column is text."""

    title: str
    headers: tuple[str, ...]
    orders: tuple[int, ...]
    rows: tuple[Row, ...]
    more: int = 0
    """How many rows were left out."""

    def worst_first(self) -> Table:
        """Return the rows by weight; equal ones by name."""
        rows = sorted(self.rows, key=lambda row: row.key)
        return msgspec.structs.replace(self, rows=tuple(sorted(rows, key=lambda row: row.weight, reverse=True)))

    def cut(self, rows: int) -> Table:
        """Return the first rows; ``more`` says how many are not there."""
        left_out = max(0, len(self.rows) - rows)
        return msgspec.structs.replace(self, rows=self.rows[:rows], more=self.more + left_out)

    def narrowed(self, width: int) -> Table:
        """Return the table with as many columns as fit, and the first cut where even two do not."""
        shown = list(range(len(self.headers)))
        # A column in which nothing is known says nothing.
        shown = [index for index in shown if index == 0 or any(row.cells[index].text != "-" for row in self.rows)]
        widths = [max(len(text) for text in self._column(index)) for index in range(len(self.headers))]
        while len(shown) > 2 and sum(widths[index] + GAP for index in shown) - GAP > width:
            shown.remove(max(shown, key=lambda index: (self.orders[index], index)))
        rows = tuple(
            msgspec.structs.replace(row, cells=tuple(row.cells[index] for index in shown)) for row in self.rows
        )
        return msgspec.structs.replace(
            self,
            headers=tuple(self.headers[index] for index in shown),
            orders=tuple(self.orders[index] for index in shown),
            rows=rows,
        )

    def lines(self) -> int:
        """Return how many lines it takes on a screen: title, headers, rows, and what was left out."""
        return 2 + len(self.rows) + (1 if self.more else 0)

    def _column(self, index: int) -> list[str]:
        return [self.headers[index], *(row.cells[index].text for row in self.rows)]


def fitted(tables: Sequence[Table], *, height: int) -> list[Table]:
    """Return tables that together fit into ``height`` lines: each gives its last rows, but for one."""
    rows = [min(1, len(table.rows)) for table in tables]
    # Title, headers, the line on what was left out, and a blank one.
    free = height - sum(4 + count for count in rows)
    while free > 0 and any(count < len(table.rows) for count, table in zip(rows, tables, strict=True)):
        for index, table in enumerate(tables):
            if rows[index] < len(table.rows) and free > 0:
                rows[index] += 1
                free -= 1
    return [table.cut(count) for count, table in zip(rows, tables, strict=True)]
