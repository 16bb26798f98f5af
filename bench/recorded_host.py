"""Samples of this machine, as long a recording of as many nodes as a measurement wants.

Real samples are taken as fast as asked, then repeated: counters go on where they ended, gauges come again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from fedmon.common.metrics.sample import Batch, Sample
from fedmon.node.collectors.host import host_collectors
from fedmon.node.measure.sampler import Sampler

Column = list[float | None]
STEP_S = 1.0


class RecordedHost:
    """Columns of real samples: of the first ``most`` series, in the order in which the collectors give them."""

    def __init__(self, *, samples: int, interval_s: float, most: int) -> None:
        taken: list[Sample] = []
        complete = threading.Event()

        def on_tick(tick: Mapping[str, Sample]) -> None:
            taken.append(tick["host"])
            if len(taken) >= samples + 1:
                complete.set()

        sampler = Sampler({"host": host_collectors(counts=dict)}, interval_s=interval_s, on_tick=on_tick)
        sampler.start()
        complete.wait(10 * samples * interval_s + 30)
        sampler.stop()
        # The first sample lacks every value that is a difference.
        self._samples = taken[1 : samples + 1]
        names = dict.fromkeys(name for sample in self._samples for name in sample.values)
        self._columns = {name: [sample.values.get(name) for sample in self._samples] for name in list(names)[:most]}

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def series(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def batch(self, node: int, first: int, length: int) -> Batch:
        """Return samples ``first`` to ``first + length - 1`` of a node; nodes stand at different places of the tape."""
        numbers = range(first, first + length)
        late = (node * 0.137) % 1.0
        return Batch(
            node_id=f"node-{node}",
            boot=1,
            stream="host",
            seq=first,
            t=[round(1_750_000_000 + late + STEP_S * at + self._jitter(node + at), 3) for at in numbers],
            mono=[round(10_000 + late + STEP_S * at + self._jitter(node + at), 6) for at in numbers],
            columns={name: self._column(name, 7 * node, numbers) for name in self._columns},
        )

    def _column(self, name: str, shift: int, numbers: range) -> Column:
        values = self._columns[name]
        known = [value for value in values if value is not None]
        # A counter starts its next round where the last ended.
        rise = known[-1] - known[0] if "_total" in name and known else 0.0
        decimals = 0 if all(isinstance(value, int) for value in known) else 6
        found: Column = []
        for at in numbers:
            round_number, place = divmod(at + shift, len(values))
            value = values[place]
            found.append(value if value is None or not rise else round(value + round_number * rise, decimals or None))
        return found

    def _jitter(self, at: int) -> float:
        """Return how late a tick was, as it was measured."""
        sample, before = self._samples[at % len(self)], self._samples[at % len(self) - 1]
        return abs(sample.mono - before.mono) % 0.001
