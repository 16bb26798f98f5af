"""What a file such as ``diskstats`` lists now, and what is said of what it lists no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedmon.node.collectors.base import Why

Values = dict[str, float | None]
Reasons = dict[str, str]
Chosen = dict[bytes, tuple[str, ...]]


class Listing:
    """Keeps the series of the devices of one file; ``choose`` maps the listed names to the series of those reported.

    A device that is gone is told once: its series are None with a reason in one reading, and absent after it.
    """

    def __init__(self, choose: Callable[[tuple[bytes, ...]], Chosen], *, where: str) -> None:
        self._choose, self._where = choose, where
        self._names: tuple[bytes, ...] = ()
        self._series: Chosen = {}

    def follow(self, names: tuple[bytes, ...], values: Values, reasons: Reasons) -> Chosen:
        """Take the names of a reading, and add to it what is said of devices that are gone; return all series."""
        if names == self._names:
            return self._series
        before, self._names, self._series = self._series, names, self._choose(names)
        for device, keys in before.items():
            if device not in self._series:
                gone = f"{Why.NOT_FOUND.value}: {device.decode(errors='replace')} is no longer listed in {self._where}"
                miss(values, reasons, keys, gone)
        return self._series


class Given:
    """The series that a collector gave; one that its source tells no longer is told once, None with a reason."""

    def __init__(self, *, where: str) -> None:
        self._where = where
        self._keys: frozenset[str] = frozenset()

    def follow(self, values: Values, reasons: Reasons) -> None:
        """Take the series of a reading, and add to it what is said of those that it does not have."""
        if len(values) == len(self._keys) and values.keys() == self._keys:
            return
        before, self._keys = self._keys, frozenset(values)
        miss(values, reasons, sorted(before - self._keys), f"{Why.NOT_FOUND.value}: {self._where} tells it no longer")


def miss(values: Values, reasons: Reasons, keys: Iterable[str], reason: str) -> None:
    """Note in a reading that these series could not be read."""
    for key in keys:
        values[key] = None
        reasons[key] = reason
