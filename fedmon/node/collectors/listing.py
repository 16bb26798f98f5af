"""What a file such as ``diskstats`` lists now, and what is said of what it lists no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedmon.node.collectors.base import Why

Values = dict[str, float | None]
Reasons = dict[str, str]
Chosen = dict[bytes, tuple[str, ...]]

LOOK_AGAIN_AFTER = 64
"""A device that takes the place of one that is not reported, between two readings, is noticed after so many."""


class Listing:
    """Finds the lines of the reported devices in a file that has one line for each.

    ``begins(text)`` maps each name that is listed to what its line begins with, up to its numbers; ``choose`` maps
    names to the series of those that are reported. While the file has as many lines as before, and each known device
    is in it, the others are not looked at. A device that is gone is told once: its series are None with a reason in
    one reading, and absent after it.
    """

    def __init__(
        self,
        begins: Callable[[bytes], dict[bytes, bytes]],
        choose: Callable[[tuple[bytes, ...]], Chosen],
        *,
        where: str,
    ) -> None:
        self._begins, self._choose, self._where = begins, choose, where
        self._names: tuple[bytes, ...] = ()
        self._series: Chosen = {}
        self._known: list[tuple[bytes, tuple[str, ...]]] = []
        self._lines = -1
        self._left = 0

    def rows(self, text: bytes, values: Values, reasons: Reasons) -> list[tuple[tuple[str, ...], bytes]]:
        """Return the series of each device with the numbers of its line; add what is said of devices that are gone.

        Raises CollectorUnavailableError when ``begins`` does.
        """
        self._left -= 1
        if self._left > 0 and text.count(b"\n") == self._lines:
            found = self._found(text)
            if found is not None:
                return found
        begins = self._begins(text)
        self._lines, self._left = text.count(b"\n"), LOOK_AGAIN_AFTER
        if tuple(begins) != self._names:
            before, self._names = self._series, tuple(begins)
            self._series = self._choose(self._names)
            for device, keys in before.items():
                if device not in self._series:
                    name = device.decode(errors="replace")
                    miss(values, reasons, keys, f"{Why.NOT_FOUND.value}: {name} is no longer listed in {self._where}")
        self._known = [(begins[name], keys) for name, keys in self._series.items()]
        return self._found(text) or []

    def _found(self, text: bytes) -> list[tuple[tuple[str, ...], bytes]] | None:
        """Return what is known and listed; None when one of the known is not."""
        found = []
        position = 0
        for begin, keys in self._known:
            start = text.find(begin, position)
            if start < 0:
                return None
            position = start + len(begin)
            end = text.find(b"\n", position)
            found.append((keys, text[position : end if end >= 0 else len(text)]))
        return found


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
