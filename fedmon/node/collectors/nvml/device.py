"""One device as one lane reads it: which questions it answers, and which it refused and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Why
from fedmon.node.collectors.nvml.library import Meaning, RefusedError
from fedmon.node.collectors.nvml.query import Gpu, Labels, Query

_NO_VALUE = f"{Why.UNSUPPORTED.value}: the driver has no value for it"


class Device:
    """Asks one device its questions, and no longer those that it refused for good; belongs to one thread.

    ``before`` is the same device before it was asked anew: until it has answered, its series are still known.
    """

    def __init__(self, gpu: Gpu, queries: Iterable[Query], *, before: Device | None = None) -> None:
        self.gpu = gpu
        self._before = tuple(before.known()) if before is not None else ()
        self._slots = [_Slot(query) for query in queries]
        self._refused: dict[str, str] = {}
        self._keys: dict[tuple[str, Labels], str] = {}

    def read(
        self, values: dict[str, float | None], reasons: dict[str, str], on_call: Callable[[str], None] = lambda _: None
    ) -> None:
        """Ask everything once. Raises RefusedError when the device is lost or NVML was ended."""
        ended: set[_Slot] = set()
        for slot in self._slots:
            on_call(slot.query.name)
            if not self._ask(slot, values, reasons):
                ended.add(slot)
        self._before = ()
        if ended:
            self._slots = [slot for slot in self._slots if slot not in ended]

    def null(self, values: dict[str, float | None], reasons: dict[str, str], reason: str) -> None:
        """Give None with one reason for every series that the device gave before."""
        keys = self.known()
        values.update(keys)
        reasons.update(dict.fromkeys(keys, reason))

    def known(self) -> dict[str, None]:
        """Return the series that the device gave."""
        keys = dict.fromkeys(self._before)
        for slot in self._slots:
            keys.update(dict.fromkeys(slot.gave))
        return keys

    def report(self) -> Mapping[str, str | None]:
        """Map each metric that was asked for to None when the device gives it, else to the reason."""
        found: dict[str, str | None] = dict(self._refused)
        for slot in self._slots:
            for metric in slot.metrics:
                if not slot.problem:
                    found[metric] = None
                elif found.get(metric, "") is not None:
                    found[metric] = slot.problem
        return found

    def _ask(self, slot: _Slot, values: dict[str, float | None], reasons: dict[str, str]) -> bool:
        """Ask one question; False when there is no use in asking it again."""
        try:
            answer = list(slot.query.read(self.gpu))
        except RefusedError as error:
            if error.meaning in (Meaning.LOST, Meaning.ENDED):
                raise
            if error.meaning is Meaning.NEVER or (error.meaning is Meaning.DOUBTFUL and not slot.worked):
                return self._give_up(slot, error.reason, values, reasons)
            slot.problem = error.reason
            keys = slot.gave or tuple(self._key(name, own) for name, own in slot.query.gives if own is not None)
            values.update(dict.fromkeys(keys))
            reasons.update(dict.fromkeys(keys, error.reason))
            return True
        gave = []
        for metric, labels, number in answer:
            gave.append(key := self._key(metric, labels))
            values[key] = number
            if number is None:
                reasons[key] = _NO_VALUE
        slot.gave, slot.worked, slot.problem = tuple(gave), True, ""
        return True

    def _give_up(self, slot: _Slot, reason: str, values: dict[str, float | None], reasons: dict[str, str]) -> bool:
        for metric in slot.metrics:
            self._refused.setdefault(metric, reason)
        if slot.query.otherwise is None:
            return False
        slot.query, slot.worked, slot.gave = slot.query.otherwise, False, ()
        return self._ask(slot, values, reasons)

    def _key(self, metric: str, labels: Labels) -> str:
        key = self._keys.get((metric, labels))
        if key is None:
            key = self._keys[metric, labels] = series(metric, **dict((*self.gpu.labels, *labels)))
        return key


class _Slot:
    """One question, and what came of it."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.worked = False
        self.problem = ""
        self.gave: tuple[str, ...] = ()

    @property
    def metrics(self) -> set[str]:
        """Name the metrics that the question stands for."""
        return {metric for metric, _ in self.query.gives}
