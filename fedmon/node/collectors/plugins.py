"""Collectors of other packages: found by entry point, loaded if the owner names them, guarded.

A package offers a plug-in as an entry point of the group ``fedmon.collectors``: a callable that takes a Context and
returns one Collector or several. ``__all__`` lists the names for the module of a plug-in.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.metrics.metric import Kind, Metric, Unit, rows
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series, split_series
from fedmon.common.metrics.table import METRICS
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Roots, Why

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "GROUP",
    "Collector",
    "CollectorUnavailableError",
    "Context",
    "Instant",
    "Lane",
    "Metric",
    "Reading",
    "Roots",
    "Unit",
    "Why",
    "plugin_collectors",
    "rows",
    "series",
]

logger = logging.getLogger(__name__)

GROUP = "fedmon.collectors"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORDS = tuple(why.value for why in Why)
_MAX_SERIES = 1000
"""Bound against a mistake in labels, which could fill memory and network."""
_SUFFIX = {Kind.COUNTER: "_total", Kind.INFO: "_info", Kind.GAUGE: ""}


class Context(NamedTuple):
    """The argument of a plug-in: the roots of the machine's files, its settings, and ``declare`` for its metrics.

    ``settings`` is the table ``[plugins.<name>]`` of the node's settings, empty by default. ``declare`` takes the rows
    of all metrics of the plug-in, see ``rows``; undeclared metrics are dropped. It raises ConflictError for a name that
    is taken, InvalidInputError for a name without its unit.
    """

    roots: Roots
    settings: Mapping[str, Any]
    declare: Callable[[Iterable[Metric]], None]


def plugin_collectors(
    names: Sequence[str],
    *,
    roots: Roots,
    settings: Mapping[str, Mapping[str, Any]],
    offers: Iterable[Any] | None = None,
) -> list[Collector]:
    """Return the collectors of the plug-ins that the owner named, for the stream ``host``.

    A plug-in that is not installed, cannot be imported, fails, or declares an existing metric is replaced by a
    collector that only reports the reason. ``offers`` defaults to all installed plug-ins.
    """
    if not names:
        return []
    known = list(_installed() if offers is None else offers)
    taken: dict[str, str] = dict.fromkeys(METRICS, "fedmon itself")
    collectors: list[Collector] = []
    for name in dict.fromkeys(names):
        declared: dict[str, Metric] = {}
        declare = functools.partial(_declare, into=declared, taken=taken)
        context = Context(roots, settings.get(name, {}), declare)
        try:
            made = _make(_chosen(name, known), context)
            guarded = [GuardedCollector(name, collector, declared, many=len(made) > 1) for collector in made]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code; the node goes on
            reason = CollectorUnavailableError.of(error).reason
            logger.warning("collector plug-in %s is left out: %s", name, reason)
            collectors.append(LeftOutPlugin(name, reason))
            continue
        taken.update(dict.fromkeys(declared, f"the plug-in {name}"))
        collectors += guarded
    return collectors


def _installed() -> Iterable[EntryPoint]:
    # It costs 3 MB, which only nodes with plug-ins should pay.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _chosen(name: str, offers: Sequence[EntryPoint]) -> EntryPoint:
    chosen = {offer.value: offer for offer in offers if offer.name == name}
    if not chosen:
        others = ", ".join(sorted({offer.name for offer in offers})) or "none"
        raise CollectorUnavailableError(
            Why.NOT_FOUND, f"no installed package offers a collector plug-in {name!r}; offered are: {others}"
        )
    if len(chosen) > 1:
        raise CollectorUnavailableError(
            Why.FAILED, f"several installed packages offer the plug-in {name!r}: {', '.join(sorted(chosen))}"
        )
    return next(iter(chosen.values()))


def _make(offer: EntryPoint, context: Context) -> list[Collector]:
    made = offer.load()(context)
    return list(made) if isinstance(made, list | tuple) else [made]


def _declare(metrics: Iterable[Metric], *, into: dict[str, Metric], taken: Mapping[str, str]) -> None:
    for metric in metrics:
        owner = taken.get(metric.name) or ("this plug-in" if metric.name in into else None)
        if owner is not None:
            raise ConflictError(f"metric {metric.name} is declared twice: {owner} has it; give it another name")
        suffix = "" if metric.unit in (Unit.COUNT, Unit.NONE) else f"_{metric.unit.value}"
        ending = suffix + _SUFFIX[metric.kind]
        start = f"{metric.scope.value}_"
        if not (_NAME.fullmatch(metric.name) and metric.name.startswith(start) and metric.name.endswith(ending)):
            raise InvalidInputError(f"metric {metric.name!r}: its name must begin with {start} and end in {ending!r}")
        into[metric.name] = metric


class GuardedCollector:
    """Reads a collector of a plug-in, and passes only declared metrics and finite numbers.

    ``declared`` maps the names of the plug-in's metrics to their rows.
    """

    def __init__(self, plugin: str, collector: Collector, declared: Mapping[str, Metric], *, many: bool) -> None:
        self.name = f"plugin-{plugin}-{collector.name}" if many else f"plugin-{plugin}"
        if not isinstance(collector.lane, Lane):
            raise TypeError(f"the lane of {collector.name} is {collector.lane!r}, and no member of Lane")
        self.lane = collector.lane
        self._plugin, self._collector, self.declared = plugin, collector, declared
        self._allowed: dict[str, bool] = {}
        self._refusal = ""
        self._refused_since = False
        # What a collector may have, or not.
        self.close, self.ending = (getattr(collector, word, lambda: None) for word in ("close", "ending"))

    def collect(self, now: Instant) -> Reading:
        """Read the plug-in once. Raises CollectorUnavailableError, naming it, when it fails."""
        try:
            reading = self._collector.collect(now)
            values = {key: _number(value) for key, value in reading.values.items() if self._allows(key)}
            reasons = {
                key: self._reason(reading.values[key], reading.reasons.get(key))
                for key, number in values.items()
                if number is None
            }
        except CollectorUnavailableError:
            raise
        except (Exception, SystemExit) as error:
            raise CollectorUnavailableError.of(error, f"plug-in {self._plugin}: ") from error
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Return the plug-in's report, and the first series that it must not give."""
        try:
            said = dict(self._collector.probe())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code
            return {self.name: CollectorUnavailableError.of(error, f"plug-in {self._plugin}: ").reason}
        report = {key: None if why is None else _reasoned(str(why)) for key, why in said.items() if self._allows(key)}
        self._refused_since = False
        return report | ({self.name: self._refusal} if self._refusal else {})

    @property
    def probe_changed(self) -> bool:
        """Whether a series was refused since the last report, or the plug-in's own report changed."""
        try:
            return self._refused_since or bool(getattr(self._collector, "probe_changed", False))
        except (Exception, SystemExit):  # noqa: BLE001 - foreign code, asked between readings
            return False

    def _allows(self, key: str) -> bool:
        """Tell whether a series belongs to a declared metric, with its labels; the first one that does not is named."""
        if (known := self._allowed.get(key)) is not None:
            return known
        is_full = len(self._allowed) >= _MAX_SERIES
        fault = f"has more than {_MAX_SERIES} series" if is_full else self._fault(key)
        if fault and not self._refusal:
            self._refusal = f"{Why.FAILED.value}: the plug-in {self._plugin} {fault}: {key!r:.100}"
            self._refused_since = True
            logger.warning("collector plug-in %s: %r is dropped: it %s", self._plugin, key, fault)
        if not is_full:
            self._allowed[key] = not fault
        return not fault

    def _fault(self, key: str) -> str:
        try:
            name, labels = split_series(key)
        except (ValueError, AttributeError):
            return "gave keys that are no series"
        metric = self.declared.get(name)
        if metric is None:
            return "gave a series without declaring its metric"
        if labels and set(labels) != set(metric.labels):
            return f"gave a series with other labels than {', '.join(metric.labels) or 'none'}"
        return ""

    def _reason(self, value: object, given: str | None) -> str:
        if value is None:
            return _reasoned(given or f"the plug-in {self._plugin} gave no reason")
        return f"{Why.FAILED.value}: the plug-in {self._plugin} gave {value!r:.100}"


class LeftOutPlugin:
    """The collector of a plug-in that could not be loaded: reports the reason."""

    lane = Lane.SLOW

    def __init__(self, plugin: str, reason: str) -> None:
        self.name, self._reason = f"plugin-{plugin}", reason

    def collect(self, _now: Instant) -> Reading:
        """Read nothing."""
        return Reading({})

    def probe(self) -> dict[str, str | None]:
        """Name the plug-in with the reason."""
        return {self.name: self._reason}


def _number(value: object) -> float | None:
    """Return a value that JSON can hold, else None: it has no NaN and no infinity."""
    if isinstance(value, bool):
        return float(value)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _reasoned(reason: str) -> str:
    return reason if reason.startswith(_WORDS) else f"{Why.FAILED.value}: {reason}"
