"""What stands between a plug-in and the node: a failure stays the plug-in's, and nothing undeclared gets out."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from fedmon.common.metrics.metric import Metric
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import split_series
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Why

logger = logging.getLogger(__name__)

_WORDS = tuple(why.value for why in Why)
_MAX_SERIES = 1000
"""More than any plug-in needs, and few enough that a mistake in labels does not fill memory and network."""


class GuardedCollector:
    """Reads a collector of a plug-in, and lets through what the plug-in declared and can be a value.

    ``declared`` maps the names of the plug-in's metrics to their rows.
    """

    def __init__(self, plugin: str, collector: Collector, declared: Mapping[str, Metric], *, many: bool) -> None:
        self.name = f"plugin-{plugin}-{collector.name}" if many else f"plugin-{plugin}"
        if not isinstance(collector.lane, Lane):
            raise TypeError(f"the lane of {collector.name} is {collector.lane!r}, and no member of Lane")
        self.lane = collector.lane
        self._plugin, self._collector, self.declared = plugin, collector, declared
        self._allowed: dict[str, bool] = {}
        self._refused: dict[str, str] = {}
        self._warned: set[str] = set()

    def collect(self, now: Instant) -> Reading:
        """Read the plug-in once. Raises CollectorUnavailableError, naming it, when it fails."""
        try:
            reading = self._collector.collect(now)
            values: dict[str, float | None] = {}
            reasons: dict[str, str] = {}
            for key, value in reading.values.items():
                if self._allowed.get(key) or self._allows(key):
                    values[key] = number = _number(value)
                    if number is None:
                        reasons[key] = self._reason(value, reading.reasons.get(key))
        except (Exception, SystemExit) as error:
            raise self._named(error) from error
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Return what the plug-in says of its metrics; those that it gave without declaring them are named."""
        try:
            said = dict(self._collector.probe())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in is somebody else's
            return {self.name: self._named(error).reason}
        report = {key: None if why is None else _reasoned(str(why)) for key, why in said.items() if self._allows(key)}
        return report | self._refused

    def close(self) -> None:
        """Let the plug-in give back what it holds, where it holds anything."""
        close = getattr(self._collector, "close", None)
        if close is not None:
            close()

    def _allows(self, key: str) -> bool:
        """Tell whether a series belongs to a metric that this plug-in declared, with its labels."""
        if key in self._allowed:
            return self._allowed[key]
        if len(self._allowed) >= _MAX_SERIES:
            return self._refuse(self.name, key, f"has more than {_MAX_SERIES} series")
        try:
            name, labels = split_series(key)
        except (ValueError, AttributeError):
            return self._refuse(self.name, key, f"gave {key!r:.100}, which is no series")
        metric = self.declared.get(name)
        if metric is None:
            return self._refuse(name, key, "gave it without declaring it")
        if labels and set(labels) != set(metric.labels):
            return self._refuse(name, key, f"gave it with other labels than {', '.join(metric.labels) or 'none'}")
        self._allowed[key] = True
        return True

    def _refuse(self, name: str, key: str, what: str) -> bool:
        if name not in self._warned:
            self._warned.add(name)
            # Of a metric that is not the plug-in's nothing may be said under its name.
            self._refused[self.name] = f"{Why.FAILED.value}: the plug-in {self._plugin} {what}: {name}"
            logger.warning("collector plug-in %s: %s is dropped: it %s", self._plugin, key, what)
        if len(self._allowed) < _MAX_SERIES:
            self._allowed[key] = False
        return False

    def _reason(self, value: object, given: str | None) -> str:
        if value is None:
            return _reasoned(given or f"the plug-in {self._plugin} gave no reason")
        return f"{Why.FAILED.value}: the plug-in {self._plugin} gave {value!r:.100}"

    def _named(self, error: BaseException) -> CollectorUnavailableError:
        if isinstance(error, CollectorUnavailableError):
            return error
        return CollectorUnavailableError(Why.FAILED, f"plug-in {self._plugin}: {described(error, plain=True)}")


class LeftOutPlugin:
    """Stands for a plug-in that could not be loaded, and says why."""

    lane = Lane.SLOW

    def __init__(self, plugin: str, reason: str) -> None:
        self.name, self._reason = f"plugin-{plugin}", reason

    def collect(self, _now: Instant) -> Reading:
        """Read nothing."""
        return Reading({})

    def probe(self) -> dict[str, str | None]:
        """Name the plug-in with the reason."""
        return {self.name: self._reason}


def described(error: BaseException, *, plain: bool = False) -> str:
    """Return an error as a reason, or plainly as its type and text."""
    if isinstance(error, CollectorUnavailableError):
        return error.reason
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return text if plain else f"{Why.FAILED.value}: {text}"


def _number(value: object) -> float | None:
    """Return a value as it can be sent, None where it cannot; JSON has no NaN and no infinity."""
    if isinstance(value, bool):
        return float(value)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _reasoned(reason: str) -> str:
    return reason if reason.startswith(_WORDS) else f"{Why.FAILED.value}: {reason}"
