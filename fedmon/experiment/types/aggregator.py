"""`fedmon::Aggregator`: a function of the researcher over the results of jobs.

Documents name a registered function, never an import, so a file cannot make code run.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real  # numpy's numbers, too
from typing import Any, TypeVar

from fedmon.experiment.attributes import Flags, Trace
from fedmon.experiment.natures import Need
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import LinkedResource, ResourceFailedError, loss_of
from fedmon.experiment.types.job import Job, saved_values, write_shown
from fedmon.experiment.types.values import CheckedAttribute, at_least, own
from fedmon.researcher.cli import run_values

Results = Mapping[str, Mapping[str, Any]]
"""The results of each node, by its id."""
Aggregation = Callable[[Results], Any]
_A = TypeVar("_A", bound=Aggregation)

MAX_ATTRIBUTE_BYTES = 16_384
"""The largest result in the attribute, and so in the journal; the trace has every result whole."""

_known: dict[str, Aggregation] = {}


def register_aggregation(function: _A, name: str | None = None) -> _A:
    """Register a function for Aggregators, by default under its own name; return it."""
    _known[name or _name_of(function)] = function
    return function


def aggregation(name: str) -> Aggregation:
    """Return a registered function. Raises ResourceFailedError naming those that are registered."""
    found = _known.get(name)
    if found is None:
        raise ResourceFailedError(
            f"aggregation {name!r} is not registered: choose from {', '.join(sorted(_known))}, or register your own by "
            "register_aggregation(function, name)"
        )
    return found


def _checked(value: Any) -> str:
    """Return the name of a function, and register it if necessary."""
    if isinstance(value, str):
        aggregation(value)
        return value
    if not callable(value):
        raise ResourceFailedError(f"it is of type {type(value).__name__}")
    # All lambdas have the same name, so another function gets a number.
    names = (f"{_name_of(value)}{f'#{number}' if number > 1 else ''}" for number in itertools.count(1))
    return next(name for name in names if _known.setdefault(name, value) == value)


def _name_of(function: Callable[..., Any]) -> str:
    qualname = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}:{qualname}"


def collect(results: Results) -> dict[str, Any]:
    """Return all results as they are, by node."""
    return {node: dict(values) for node, values in results.items()}


def total(results: Results) -> dict[str, Any]:
    """Return the sum over all nodes of each number and array."""
    return {name: _sum(values) for name, values in _columns(results).items()}


def mean(results: Results) -> dict[str, Any]:
    """Return the mean over all nodes of each number and array."""
    return {name: _sum(values) / len(values) for name, values in _columns(results).items()}


def weighted_mean(results: Results) -> dict[str, Any]:
    """Return the means weighted by the "rows" of each node, and their sum as "rows"."""
    for node, values in results.items():
        rows: Any = values.get("rows")
        if not _is_number(rows) or rows < 0:
            raise ValueError(f"{node} returned no number of rows to weight it by, but {rows!r}")
    results = {node: values for node, values in results.items() if values["rows"]}  # without rows a mean is NaN
    if not results:
        raise ValueError("no node has a row")
    weights = [values["rows"] for values in results.values()]
    whole = math.fsum(weights)
    found = {
        name: _sum([weight * value for weight, value in zip(weights, values, strict=True)]) / whole
        for name, values in _columns(results).items()
        if name != "rows"
    }
    return {**found, "rows": sum(weights)}


def _columns(results: Results) -> dict[str, list[Any]]:
    """Return the values of each name under which every node has a number or an array."""
    rows = list(results.values())
    names = [name for name in (rows[0] if rows else {}) if all(_is_summable(row.get(name)) for row in rows)]
    for name in names:
        shapes = {node: getattr(row[name], "shape", ()) for node, row in results.items()}
        if len(set(shapes.values())) > 1:  # numpy may stretch the smaller ones
            raise ValueError(f"{name} has different shapes: {shapes}")
    return {name: [_wide(row[name]) for row in rows] for name in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_summable(value: Any) -> bool:
    return _is_number(value) or getattr(getattr(value, "dtype", None), "kind", "") in tuple("iufc")


def _wide(value: Any) -> Any:
    """Return integers of an array in 64 bits, where sums of smaller ones would wrap around; all else as it is."""
    dtype = getattr(value, "dtype", None)
    return value.astype("i8") if dtype is not None and dtype.kind in "iu" and dtype.itemsize < 8 else value


def _sum(values: Sequence[Any]) -> Any:
    has_floats = all(map(_is_number, values)) and any(isinstance(value, float) for value in values)
    return math.fsum(values) if has_floats else sum(values)


_known.update({"collect": collect, "sum": total, "mean": mean, "weighted-mean": weighted_mean})


class Aggregator(LinkedResource):
    """Waits for its jobs once it was started, and is STOPPED with the result of its function over their results.

    Jobs that failed and are not critical are left out, unless none is left. With ``atLeast`` it continues once that
    number of jobs ended well and no other is STARTED. The numbers of its result reach conditions under its guid.
    """

    _rtype = "fedmon::Aggregator"
    _help = "A function over the results of the jobs that it is connected to."
    _partners = ("fedmon::Job", "fedmon::Collector")
    _watched = "fedmon::Job"
    _needs = (Need(verb="stop", of="fedmon::Job", state=ResourceState.STOPPED),)
    _ends_itself = True
    _required_connections = (("fedmon::Job",),)

    own_attributes = (
        CheckedAttribute("function", "The function over the results of the nodes: collect, sum, mean, weighted-mean, "
                         "or your own.", _checked, "a function, or the name of one that was registered",
                         flags=Flags.Design, default="collect"),
        at_least("How many of its jobs must end well; None: all that are critical."),
        own("result", "Its result as JSON; only the names if it is large."),
    )  # fmt: skip
    own_traces = (Trace("result", "Its result as JSON; arrays by type, shape and, if few, elements."),)
    _is_done = False

    @property
    def result(self) -> dict[str, Any] | None:
        """Its result, with arrays; None before it is STOPPED."""
        return None if self.get("result") is None else saved_values(self.folder).get("values")

    def do_deploy(self) -> None:
        """Refuse to be READY without enough jobs."""
        needed = self.get("atLeast")
        if needed is not None and len(self.linked(Job)) < needed:
            raise ResourceFailedError(
                f"{self.name} has no {needed} jobs: connect it to more; atLeast of a job counts nodes"
            )
        super().do_deploy()

    def do_start(self) -> None:
        """Wait for the jobs."""
        self._is_done = False
        self.set_started()
        self.look()

    def do_reconnect(self, verb: str | None) -> None:
        """Wait for the jobs again, also if the hook of its start had not returned."""
        if self.state is ResourceState.STARTED and verb == "start":
            self.look()
        else:
            super().do_reconnect(verb)

    def look(self) -> None:
        """Call the function if the jobs are over."""
        jobs, needed = self.linked(Job), self.get("atLeast")
        with self.lock:
            states = {job: job.state for job in jobs}
            # Its jobs are released with it.
            if self._is_done or self.state is not ResourceState.STARTED or self._seen().calling == "release":
                return
            done = [job for job, state in states.items() if state is ResourceState.STOPPED]
            lost = [job for job, state in states.items() if state >= ResourceState.FAILED]
            is_enough = needed is not None and len(done) >= needed and ResourceState.STARTED not in states.values()
            is_hopeless = needed is not None and len(jobs) - len(lost) < needed
            if not (is_enough or is_hopeless or len(done) + len(lost) == len(jobs)):
                return
            self._is_done = True
        if is_hopeless or (lost and (not done or (needed is None and any(job.get("critical") for job in lost)))):
            raise loss_of(lost[0])
        found = aggregation(self.get("function"))(_results(done))
        self._keep(dict(found) if isinstance(found, Mapping) else {"value": found})
        self.set_stopped()

    def _keep(self, found: dict[str, Any]) -> None:
        run_values.save({"values": found}, self.folder)
        write_shown(self.folder / "result", found)
        text = json.dumps(run_values.shown(found), ensure_ascii=False)
        if len(text) > MAX_ATTRIBUTE_BYTES:
            text = json.dumps({"names": sorted(map(str, found))})[:MAX_ATTRIBUTE_BYTES]
        self.note("result", text)
        numbers = {name: float(value) for name, value in found.items() if isinstance(value, Real)}
        nth = int(1e6 * dict(self._seen().times)[ResourceState.STARTED])  # a process that reconnects skips those told
        self.tell_metrics(self.guid, self.controller.reports(self.guid).take("", nth, numbers), nth=nth)


def _results(jobs: list[Job]) -> dict[str, Mapping[str, Any]]:
    """Return the results by node; if several jobs ran on a node, by node and job."""
    found = [(node, job.guid, values) for job in jobs for node, values in job.results.items()]
    times = Counter(node for node, _, _ in found)
    return {node if times[node] == 1 else f"{node}#{guid}": values for node, guid, values in found}
