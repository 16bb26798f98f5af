"""Functions over the results of jobs, by the names under which experiments in files can ask for them.

A name leads to a function that some code registered, and never to an import: a file cannot have code run.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fedmon.experiment.types.errors import UnknownAggregationError

Results = Mapping[str, Mapping[str, Any]]
"""What each node returned, by its id."""
Aggregation = Callable[[Results], Any]
_A = TypeVar("_A", bound=Aggregation)

_lock = threading.Lock()
_known: dict[str, Aggregation] = {}


def register_aggregation(function: _A, name: str | None = None) -> _A:
    """Have Aggregators find a function under a name, its own where none is given; return the function."""
    with _lock:
        _known[name or name_of(function)] = function
    return function


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function: that of its module and its own."""
    qualname = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}:{qualname}"


def aggregation(name: str) -> Aggregation:
    """Return a function by its name. Raises UnknownAggregationError naming those that there are."""
    found = _known.get(name)
    if found is None:
        raise UnknownAggregationError(
            f"nobody registered an aggregation {name!r}: there are {', '.join(sorted(_known))}; make your own known by "
            "register_aggregation(function, name)"
        )
    return found


def checked(value: Any) -> str:
    """Return the name of a function, which is registered if it is none yet."""
    if callable(value):
        return _own_name(value)
    if not isinstance(value, str):
        raise UnknownAggregationError(f"it is of type {type(value).__name__}")
    aggregation(value)
    return value


def _own_name(function: Aggregation) -> str:
    """Register a function under its name, and a number where that is taken: all lambdas have the same."""
    with _lock:
        names = (f"{name_of(function)}{f'#{number}' if number > 1 else ''}" for number in itertools.count(1))
        name = next(name for name in names if name not in _known or _known[name] == function)
        _known[name] = function
        return name


def collect(results: Results) -> dict[str, Any]:
    """Return all results as they are, by node."""
    return {node: dict(values) for node, values in results.items()}


def total(results: Results) -> dict[str, Any]:
    """Return the sums of what every node returned; what is no number or array is left out."""
    return {name: _sum(values) for name, values in _columns(results).items()}


def mean(results: Results) -> dict[str, Any]:
    """Return the means of what every node returned, each node counting the same."""
    return {name: _sum(values) / len(values) for name, values in _columns(results).items()}


def weighted_mean(results: Results) -> dict[str, Any]:
    """Return the means weighted by what nodes returned as "rows", of which it returns the sum."""
    weights: list[Any] = []
    for node, values in results.items():
        rows: Any = values.get("rows")
        if not _is_number(rows) or rows < 0:
            raise ValueError(f"{node} returned no number of rows to weight it by, but {rows!r}")
        weights.append(rows)
    whole = math.fsum(weights)
    if not whole:
        raise ValueError("no node has a row")
    found = {
        name: _sum([weight * value for weight, value in zip(weights, values, strict=True)]) / whole
        for name, values in _columns(results).items()
        if name != "rows"
    }
    return {**found, "rows": sum(weights)}


def _columns(results: Results) -> dict[str, list[Any]]:
    """Return the values of each name that every node has as a number or an array."""
    rows = list(results.values())
    names = [name for name in (rows[0] if rows else {}) if all(_is_summable(row.get(name)) for row in rows)]
    return {name: [row[name] for row in rows] for name in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_summable(value: Any) -> bool:
    return _is_number(value) or getattr(getattr(value, "dtype", None), "kind", "") in tuple("iufc")


def _sum(values: Sequence[Any]) -> Any:
    if all(isinstance(value, int) for value in values):
        return sum(values)
    if all(_is_number(value) for value in values):
        return math.fsum(values)
    return sum(values[1:], start=values[0])


for _name, _function in (("collect", collect), ("sum", total), ("mean", mean), ("weighted-mean", weighted_mean)):
    register_aggregation(_function, _name)
