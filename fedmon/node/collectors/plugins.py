"""Collectors that other packages bring: found by entry point, loaded when the owner names them, kept apart.

A package offers a plug-in as an entry point of the group ``fedmon.collectors``: a callable that takes a Context and
returns one Collector or several. What a plug-in's module needs is named in ``__all__`` here.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.metrics.metric import Kind, Metric, Unit, rows
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.common.metrics.table import METRICS
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Roots, Why
from fedmon.node.collectors.plugin_guard import GuardedCollector, LeftOutPlugin, described

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
_SUFFIX = {Kind.COUNTER: "_total", Kind.INFO: "_info", Kind.GAUGE: ""}


class Context(NamedTuple):
    """What a plug-in is given: where the machine's files are, its own settings, and ``declare`` for its metrics.

    ``settings`` is the table ``[plugins.<name>]`` of the node's settings, empty when there is none. ``declare`` takes
    the rows of all metrics that the plug-in will give, see ``rows``; what is not declared never leaves the plug-in. It
    raises ConflictError for a name that is taken, InvalidInputError for one that does not say its unit.
    """

    roots: Roots
    settings: Mapping[str, Any]
    declare: Callable[[Iterable[Metric]], None]


class Offer(Protocol):
    """What we need of ``importlib.metadata.EntryPoint``."""

    @property
    def name(self) -> str:
        """Return the name by which the owner calls the plug-in."""
        ...

    @property
    def value(self) -> str:
        """Return module and callable, such as ``fedmon_sockets:make``."""
        ...

    def load(self) -> Any:
        """Import the module and return the callable."""
        ...


def plugin_collectors(
    names: Sequence[str],
    *,
    roots: Roots,
    settings: Mapping[str, Mapping[str, Any]],
    offers: Iterable[Offer] | None = None,
) -> list[Collector]:
    """Return the collectors of the plug-ins that the owner named, for the stream ``host``.

    A plug-in that is not installed, cannot be imported, fails, or declares a metric that exists already, is left out:
    in its place stands a collector that reads nothing and says why. ``offers`` are all installed plug-ins when None.
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
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in is somebody else's, and the node goes on
            reason = described(error)
            logger.warning("collector plug-in %s is left out: %s", name, reason)
            collectors.append(LeftOutPlugin(name, reason))
            continue
        taken.update(dict.fromkeys(declared, f"the plug-in {name}"))
        collectors += guarded
    return collectors


def _installed() -> Iterable[Offer]:
    # It costs 3 MB, which only nodes with plug-ins should pay.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _chosen(name: str, offers: Sequence[Offer]) -> Offer:
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


def _make(offer: Offer, context: Context) -> list[Collector]:
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
