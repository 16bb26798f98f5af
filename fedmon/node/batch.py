"""Samples of one stream, gathered until they go out together."""

from __future__ import annotations

import msgspec

from fedmon.common.metrics.sample import Sample

MAX_SAMPLES = 10
MAX_AGE_S = 10.0
MAX_BYTES = 65_536
_NUMBER_BYTES = 25
_FRAME_BYTES = 256


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Samples ``seq`` to ``seq + len(t) - 1`` of one boot and stream as columns; everything that was measured."""

    boot: int
    stream: str
    seq: int
    t: list[float]
    mono: list[float]
    columns: dict[str, list[float | None]]
    reasons: dict[str, str]

    def halves(self) -> tuple[Batch, Batch]:
        """Split into two batches that say the same."""
        middle = len(self.t) // 2
        first = {key: column[:middle] for key, column in self.columns.items()}
        second = {key: column[middle:] for key, column in self.columns.items()}
        return (
            msgspec.structs.replace(self, t=self.t[:middle], mono=self.mono[:middle], columns=first),
            msgspec.structs.replace(
                self, seq=self.seq + middle, t=self.t[middle:], mono=self.mono[middle:], columns=second
            ),
        )


class OpenBatch:
    """The samples since the last batch went out. All of them have the same series. Not safe between threads."""

    def __init__(self, *, boot: int, stream: str, seq: int, first: Sample) -> None:
        self._boot, self._stream, self._seq = boot, stream, seq
        self._series = tuple(first.values)
        self._samples = [first]
        # Upper bounds, so that nothing has to be encoded twice: names once, then numbers of at most 24 characters.
        self._row_bytes = (len(self._series) + 2) * _NUMBER_BYTES
        self._size = _FRAME_BYTES + sum(map(len, self._series)) + 8 * len(self._series) + self._added(first)

    def fits(self, sample: Sample) -> bool:
        """Tell whether a sample has the same series and finds room."""
        return self._size + self._added(sample) <= MAX_BYTES and self._series == tuple(sample.values)

    def add(self, sample: Sample) -> None:
        """Take a sample that fits."""
        self._samples.append(sample)
        self._size += self._added(sample)

    def complete(self, next_in_s: float) -> bool:
        """Tell whether the batch goes out now: it is full, or would be too old when the next sample comes."""
        first, last = self._samples[0], self._samples[-1]
        # A tenth of a tick of tolerance: ticks are a little late, and none of them is early.
        return len(self._samples) >= MAX_SAMPLES or last.mono - first.mono + 0.9 * next_in_s > MAX_AGE_S

    def close(self) -> Batch:
        """Return what was gathered."""
        rows = [sample.values.values() for sample in self._samples]
        reasons: dict[str, str] = {}
        for sample in self._samples:
            reasons.update(sample.reasons)
        return Batch(
            boot=self._boot,
            stream=self._stream,
            seq=self._seq,
            t=[round(sample.t, 3) for sample in self._samples],
            mono=[round(sample.mono, 6) for sample in self._samples],
            columns={key: list(column) for key, column in zip(self._series, zip(*rows, strict=True), strict=True)},
            reasons=reasons,
        )

    def _added(self, sample: Sample) -> int:
        return self._row_bytes + sum(len(key) + len(text) + 8 for key, text in sample.reasons.items())
