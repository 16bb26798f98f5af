"""Which time the samples of a stream cover: without holes, and whatever was done to the wall clock."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from fedmon.report.block import Block, Floats

HOLE_FACTOR = 2.5
"""Two samples so many times as far apart as usual have a hole between them; a late tick or a halved pace is none."""
CLOCK_STEP_S = 0.5
"""Wall and monotonic clock apart by so much more from one sample to the next: the wall clock was set."""
_MOST = 64
_TAIL = 5


class Hole(NamedTuple):
    """A time without samples: from Unix time ``after_t`` to ``until_t``, with so many numbers ``missing``."""

    seconds: float
    after_t: float
    until_t: float
    missing: int


class ClockStep(NamedTuple):
    """The wall clock was set ``by_s`` seconds forward, or back if negative, shortly before Unix time ``t``."""

    t: float
    by_s: float


class CoveredTime:
    """Follows the samples of one stream; ``has_pace`` is False where they come whenever somebody likes."""

    def __init__(self, *, has_pace: bool = True) -> None:
        self._has_pace = has_pace
        self.typical_s = 0.0
        self.boots = self.samples = self.steps = self.missing = self.hole_count = 0
        self.first_t = self.last_t = self.seconds = self.hole_seconds = 0.0
        self.clock_steps: list[ClockStep] = []
        self._holes: list[Hole] = []
        self._boot: int | None = None
        self._last = (0.0, 0.0, 0)
        self._tail = np.empty(0)

    @property
    def holes(self) -> list[Hole]:
        """The largest holes, the largest first."""
        return sorted(self._holes, reverse=True)

    def begins_boot(self, block: Block) -> bool:
        """Tell whether a block is the first of its boot."""
        return block.boot != self._boot

    def advance(self, block: Block) -> Floats:
        """Return the covered time up to each sample of the next block, in seconds since the first of the stream."""
        if self.begins_boot(block):
            self._boot, self.boots = block.boot, self.boots + 1
            self._last = (float(block.t[0]), float(block.mono[0]), block.seq - 1)
            self.first_t = min(self.first_t, float(block.t[0])) if self.samples else float(block.t[0])
            is_first = True
        else:
            is_first = False
        t, mono, seq = self._last
        elapsed = np.maximum(np.diff(block.mono, prepend=mono), 0.0)
        passed = np.diff(block.t, prepend=t)
        self._note_clock(block, passed - elapsed)
        missing = block.seq - seq - 1
        self.missing += missing
        steps = elapsed[1:] if is_first else elapsed
        if self._has_pace and len(steps):
            elapsed = self._without_holes(block, elapsed, steps, missing, t)
        self._last = (float(block.t[-1]), float(block.mono[-1]), block.last_seq)
        self.samples += len(block.t)
        self.steps += len(steps)
        self.last_t = max(self.last_t, float(block.t.max()))
        self.first_t = min(self.first_t, float(block.t.min()))
        covered: Floats = np.cumsum(elapsed) + self.seconds
        self.seconds = float(covered[-1])
        return covered

    def _without_holes(self, block: Block, elapsed: Floats, steps: Floats, missing: int, before_t: float) -> Floats:
        recent = steps if len(steps) > _TAIL else np.concatenate([self._tail, steps])[-2 * _TAIL :]
        self._tail = recent[-_TAIL:]
        self.typical_s = float(np.median(recent))
        is_hole = elapsed > HOLE_FACTOR * max(self.typical_s, 1e-3)
        if missing:
            is_hole[0] = is_hole[0] or elapsed[0] > self.typical_s
        if not is_hole.any():
            return elapsed
        for at in np.flatnonzero(is_hole):
            after_t = float(block.t[at - 1]) if at else before_t
            hole = Hole(float(elapsed[at]), after_t, float(block.t[at]), missing if at == 0 else 0)
            self.hole_count += 1
            self.hole_seconds += hole.seconds - self.typical_s
            (heapq.heappush if len(self._holes) < _MOST else heapq.heappushpop)(self._holes, hole)
        # Of a hole the usual distance is kept: the sample after it stands for the time just before it.
        return np.where(is_hole, self.typical_s, elapsed)

    def _note_clock(self, block: Block, drift: Floats) -> None:
        for at in np.flatnonzero(np.abs(drift) > CLOCK_STEP_S)[:_MOST]:
            if len(self.clock_steps) < _MOST:
                self.clock_steps.append(ClockStep(float(block.t[at]), float(drift[at])))
