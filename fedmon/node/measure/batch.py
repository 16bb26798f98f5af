"""Samples of one stream, gathered until they go out together."""

from __future__ import annotations

import msgspec

from fedmon.common.metrics.batch import Batch
from fedmon.common.metrics.sample import Sample

MAX_SAMPLES = 10
MAX_AGE_S = 10.0
MAX_BYTES = 65_536
_NUMBER_BYTES = 25
_FRAME_BYTES = 256


class OpenBatch:
    """The samples since the last batch went out. Not safe between threads.

    Samples need not have the same series: what one lacks is null there, without a reason.
    """

    def __init__(self, *, node_id: str, boot: int, stream: str, seq: int) -> None:
        self._node_id, self._boot, self._stream, self._seq = node_id, boot, stream, seq
        self._series: dict[str, None] = {}
        self._keys: tuple[str, ...] = ()
        self._is_even = True
        self._samples: list[Sample] = []
        self._reasons: dict[str, str] = {}
        self._size = _FRAME_BYTES

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def begun(self) -> float:
        """The monotonic time of the first sample; there must be one."""
        return self._samples[0].mono

    def fits(self, sample: Sample) -> bool:
        """Tell whether a sample finds room; the first one always does."""
        return not self._samples or self._size + self._added(sample) <= MAX_BYTES

    def add(self, sample: Sample) -> None:
        """Take a sample that fits."""
        self._size += self._added(sample)
        keys = tuple(sample.values)
        if keys != self._keys:
            self._is_even = not self._samples
            self._keys = keys
            self._series.update(sample.values)  # type: ignore[arg-type]  # only the keys count
        self._samples.append(sample)
        if sample.reasons:
            self._reasons.update(sample.reasons)

    def complete(self, next_in_s: float) -> bool:
        """Tell whether the batch goes out now: it is full, or would be too old when the next sample comes."""
        first, last = self._samples[0], self._samples[-1]
        # A tenth of a tick of tolerance: ticks are a little late, and none of them is early.
        return len(self._samples) >= MAX_SAMPLES or last.mono - first.mono + 0.9 * next_in_s > MAX_AGE_S

    def close(self) -> Batch:
        """Return what was gathered."""
        return Batch(
            node_id=self._node_id,
            boot=self._boot,
            stream=self._stream,
            seq=self._seq,
            t=[round(sample.t, 3) for sample in self._samples],
            mono=[round(sample.mono, 6) for sample in self._samples],
            columns=self._columns(),
            reasons=self._reasons,
        )

    def _columns(self) -> dict[str, list[float | None]]:
        if self._is_even:
            rows = [sample.values.values() for sample in self._samples]
            return {key: list(column) for key, column in zip(self._keys, zip(*rows, strict=True), strict=True)}
        return {key: [sample.values.get(key) for sample in self._samples] for key in self._series}

    def _added(self, sample: Sample) -> int:
        # Upper bounds, so that nothing has to be encoded twice: numbers of at most 24 characters, and each name once.
        names = 0
        if len(sample.values) != len(self._keys) or tuple(sample.values) != self._keys:
            new = [key for key in sample.values if key not in self._series]
            # A series that is new has an entry for each sample that lacks it.
            names = sum(map(text_bytes, new)) + (8 + 5 * len(self._samples)) * len(new)
        reasons = sum(
            text_bytes(key) + text_bytes(text) + 8
            for key, text in sample.reasons.items()
            if self._reasons.get(key) != text
        )
        return (max(len(self._series), len(sample.values)) + 2) * _NUMBER_BYTES + names + reasons


def text_bytes(text: str) -> int:
    """Return how many bytes a text takes in JSON, where one character may take six: names may be users' own."""
    return len(msgspec.json.encode(text))
