"""The columns of a table: the same in the same order, however and in which order the series were recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, Kind

_PARTS = re.compile(r"([0-9]{1,18})")

Order = tuple[tuple[int, int, str], ...]


def natural(text: str) -> Order:
    """Return what a text is sorted by: numbers in it count as numbers, and come before letters."""
    parts = filter(None, _PARTS.split(text))
    return tuple((0, int(part), part) if _PARTS.fullmatch(part) else (1, 0, part) for part in parts)


JOB = "job-"
LABELS = ("job", "system", "partition", "env", "name")
"""The words for a run that become columns of their own, in this order."""
_PLACES = {name: place for place, name in enumerate(METRICS)}
_TOTAL, _PER_SECOND = "_total", "_per_second"


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One series of one stream, or its growth a second; ``name`` is its column's."""

    name: str
    stream: str
    series: str
    is_rate: bool = False


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the columns of text in the rows of one node; ``labels`` are those of the layout.

    The label ``job`` stands only in rows of the times in ``job_times``, in Unix seconds, both ends included.
    """

    host: str
    labels: dict[str, str] = {}
    job_times: list[tuple[float, float]] = []


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What the columns of a table are, and what of it is known before a sample is read."""

    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    owners: dict[str, Owner]
    rates: bool


def columns(found: Iterable[tuple[str, Iterable[str]]], *, rates: bool) -> tuple[Column, ...]:
    """Return the columns of the series of streams, in the order of the metric table, then by labels.

    Series that the table does not know come last. With several jobs, or where another stream has a series too, a
    job's series gets the label ``job``. With ``rates`` each counter is followed by its growth a second.
    """
    streams: dict[str, dict[str, None]] = {}
    for stream, names in found:
        streams.setdefault(stream, {}).update(dict.fromkeys(names))
    jobs = [stream for stream in streams if stream.startswith(JOB)]
    plain = {stream: set(names) for stream, names in streams.items() if stream not in jobs}
    made: list[tuple[Order, Column]] = []
    for stream in sorted(streams, key=lambda stream: (stream in jobs, natural(stream))):
        for series in streams[stream]:
            others = [one for one, names in plain.items() if one != stream and series in names]
            label: dict[str, str] = {}
            if stream in jobs and (len(jobs) > 1 or others):
                label = {"job": stream.removeprefix(JOB)}
            elif any(one < stream for one in others):
                label = {"stream": stream}
            made += [
                (_order(name, series), Column(name=name, stream=stream, series=series, is_rate=is_rate))
                for name, is_rate in _names(series, label, rates=rates)
            ]
    made.sort(key=lambda one: one[0])
    return tuple(_told_apart([column for _, column in made]))


def is_counter(series: str) -> bool:
    """Tell whether a series only grows: by the table, and for what it does not know by its name."""
    metric = METRICS.get(metric_name(series))
    return metric.kind is Kind.COUNTER if metric is not None else metric_name(series).endswith(_TOTAL)


def sound(text: str) -> str:
    """Return a text that every format can hold: what is no character of Unicode is written as its code."""
    return text.encode("utf-8", "backslashreplace").decode()


def labelled(series: str, label: Mapping[str, str]) -> str:
    """Return a series with labels more; one that it has already is added as ``of_<label>``."""
    for name, value in label.items():
        own = name if f'{name}="' not in series else f"of_{name}"
        series = f'{series[:-1]},{own}="{value}"}}' if "{" in series else f'{series}{{{own}="{value}"}}'
    return series


def _names(series: str, label: Mapping[str, str], *, rates: bool) -> list[tuple[str, bool]]:
    name = sound(labelled(series, label))
    found = [(name, False)]
    if rates and is_counter(series):
        metric, brace, rest = name.partition("{")
        found.append((f"{metric.removesuffix(_TOTAL)}{_PER_SECOND}{brace}{rest}", True))
    return found


def _order(name: str, series: str) -> Order:
    metric = metric_name(series)
    place = _PLACES.get(metric)
    known = (0, place, "") if place is not None else (1, 0, metric)
    labels = name.partition("{")[2]
    return (known, *natural(labels), (-1, int(name.startswith(f"{metric.removesuffix(_TOTAL)}{_PER_SECOND}")), ""))


def _told_apart(made: list[Column]) -> list[Column]:
    """Return columns of which no two have the same name, should a plug-in call a series like the growth of another."""
    taken: set[str] = set()
    found: list[Column] = []
    for column in made:
        name, number = column.name, 1
        while name in taken:
            number += 1
            name = f"{column.name}_{number}"
        taken.add(name)
        found.append(msgspec.structs.replace(column, name=name))
    return found
