"""What one column of a table shows of a node, a job or a device, and how bad that is."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

import msgspec

from fedmon.common.metrics.table import MISSING, format_rate, format_value
from fedmon.researcher.cli.watching.latest import Latest


class Grade(enum.IntEnum):
    """How bad a value is."""

    FINE = 0
    HIGH = 1
    BAD = 2


class Cell(msgspec.Struct, frozen=True):
    """A value as people read it, and how bad it is."""

    text: str
    grade: Grade = Grade.FINE
    weight: float = 0.0
    """How near the value is to its worst, 0 to 1; rows are sorted by their heaviest cell."""


Labels = Mapping[str, str]


class Column(msgspec.Struct, frozen=True):
    """A header, what stands below it, and when it gives way on a narrow screen: the highest ``order`` goes first."""

    header: str
    cell: Callable[[Latest, Labels], Cell]
    order: int = 5


NOTHING = Cell(MISSING)


def value(metric: str, *, worst: tuple[float, float] | None = None) -> Callable[[Latest, Labels], Cell]:
    """Show the series of a metric with the row's labels; ``worst`` is where it is high and where it is bad."""

    def cell(latest: Latest, labels: Labels) -> Cell:
        return shown(metric, _one(latest.each(metric), labels), worst=worst)

    return cell


def growth(metric: str) -> Callable[[Latest, Labels], Cell]:
    """Show how fast a counter grows, over all its series that have the row's labels."""

    def cell(latest: Latest, labels: Labels) -> Cell:
        matching = [number for found, number in latest.growths(metric) if labels.items() <= found.items()]
        known = [number for number in matching if number is not None]
        complete = known and len(known) == len(matching)
        return Cell(format_rate(metric, sum(known))) if complete else NOTHING

    return cell


def shown(metric: str, number: float | None, *, worst: tuple[float, float] | None = None) -> Cell:
    """Make the cell of one number."""
    if number is None:
        return NOTHING
    return Cell(format_value(metric, number), *graded(number, worst))


def graded(number: float, worst: tuple[float, float] | None) -> tuple[Grade, float]:
    """Tell how bad a number is; ``worst`` is where it is high, and where it is bad."""
    if worst is None:
        return Grade.FINE, 0.0
    high, bad = worst
    grade = Grade.BAD if number >= bad else Grade.HIGH if number >= high else Grade.FINE
    return grade, min(1.0, max(0.0, number / bad)) if bad else 0.0


def _one(found: list[tuple[Labels, float | None]], labels: Labels) -> float | None:
    matching = [number for its, number in found if labels.items() <= its.items()]
    return matching[0] if len(matching) == 1 else None
