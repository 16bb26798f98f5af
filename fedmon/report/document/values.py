"""The table of everything that was measured, and that of what the program reported."""

from __future__ import annotations

from fedmon.common.metrics.table import METRICS, MISSING, Kind, Unit, format_rate, format_value, metric_of
from fedmon.report.document.model import Table, shown
from fedmon.report.findings.case import Case, summed
from fedmon.report.layout import labelled
from fedmon.report.natural_order import natural
from fedmon.report.source import JOB
from fedmon.report.totals import SeriesTotal
from fedmon.report.wording import duration, moment, number

MOST_SERIES = 400
_OTHER_TABLE = ("user_value", "user_step")


def value_table(case: Case) -> tuple[Table, int]:
    """Return one row for each series, all nodes together, in the order of the metrics; and how many are left out.

    Of a counter the mean is that of its growth a second; of several nodes the one with the highest mean is named. What
    was counted of both, machine and job, has a row for each.
    """
    of_others = {
        series
        for node in case.nodes
        for name, stream in node.streams.items()
        if not name.startswith(JOB)
        for series in stream.series
    }
    found: dict[str, list[tuple[str, SeriesTotal]]] = {}
    for node in case.nodes:
        for name, stream in node.streams.items():
            if name.startswith(JOB) and name != f"{JOB}{case.job}":
                continue
            for total in stream.series.values():
                metric = metric_of(total.series)
                if (metric is None or metric.kind is not Kind.INFO) and not total.series.startswith(_OTHER_TABLE):
                    is_of_both = name.startswith(JOB) and total.series in of_others
                    label = {"job": name.removeprefix(JOB)} if is_of_both else {}
                    found.setdefault(labelled(total.series, label), []).append((node.name, total))
    order = {name: at for at, name in enumerate(METRICS)}
    names = sorted(found, key=lambda name: (order.get(name.partition("{")[0], len(order)), natural(name)))
    many = len(case.nodes) > 1
    headers = ("Series", "Mean", "Lowest", "Highest", "Sum or last", *(("Most on",) if many else ()))
    rows = [_row(name, found[name], many=many) for name in names[:MOST_SERIES]]
    return Table(headers=headers, rows=tuple(rows), numeric=frozenset({1, 2, 3, 4})), max(0, len(names) - MOST_SERIES)


def _row(name: str, totals: list[tuple[str, SeriesTotal]], *, many: bool) -> tuple[str, ...]:
    means = [(_mean(total), node) for node, total in totals]
    known = [(mean, node) for mean, node in means if mean is not None]
    is_counter = _counts(name)
    if is_counter:
        metric = metric_of(name)
        # A second is too short for these: their growth is told as power.
        has_rate = known and (metric is None or metric.unit not in (Unit.KILOWATT_HOURS, Unit.GRAMS))
        texts = [
            format_rate(name, sum(mean for mean, _ in known) / len(known)) if has_rate else MISSING,
            *[MISSING] * 2,
        ]
        grown = summed(total for _, total in totals)
        last = format_value(name, grown)
    else:
        texts = [format_value(name, sum(mean for mean, _ in known) / len(known))] if known else [MISSING]
        texts += [format_value(name, min(total.low for _, total in totals)),
                  format_value(name, max(total.high for _, total in totals))]  # fmt: skip
        last = format_value(name, totals[0][1].last) if len(totals) == 1 else MISSING
    return shown(name, 120), *texts, last, *([shown(max(known)[1], 40) if known else MISSING] if many else [])


def _mean(total: SeriesTotal) -> float | None:
    return total.per_second if _counts(total.series) else total.mean


def _counts(name: str) -> bool:
    return name.partition("{")[0].endswith("_total")


def user_table(case: Case) -> Table:
    """Return one row for each value that a program reported, and node."""
    rows: list[tuple[str, ...]] = []
    for node in case.nodes:
        for labels, total in node.all("user_value"):
            step = node.one("user_step", name=labels.get("name", ""))
            rows.append(
                (
                    shown(labels.get("name"), 60),
                    shown(node.name, 60),
                    str(total.values),
                    number(total.first, 4),
                    number(total.last, 4),
                    number(total.low, 4),
                    number(total.high, 4),
                    number(step.last) if step is not None else MISSING,
                    f"{moment(total.first_t)}, {duration(total.last_t - total.first_t)}",
                )
            )
    headers = ("Name", "Node", "Values", "First", "Last", "Lowest", "Highest", "Last step", "From, for")
    return Table(headers=headers, rows=tuple(rows[:MOST_SERIES]), numeric=frozenset(range(2, 8)))
