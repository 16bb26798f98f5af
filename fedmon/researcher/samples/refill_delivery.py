"""Handing one consumer's samples on: at once or in order, within bounds, and counting what is lost."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from fedmon.common.metrics.batch import Batch
from fedmon.researcher.samples.gaps import GapAccount
from fedmon.researcher.samples.refill_line import Held, Line, Want

HOLD_BYTES = 8 * 1024 * 1024


class Sink(Protocol):
    """Where a consumer's samples go; called on the thread of the inbox."""

    def has_room(self) -> bool:
        """Tell whether a batch may be put now; who says no wakes the inbox once there is room again."""

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Take samples; ``late`` ones were pulled, or came after newer ones."""

    def lost_for_good(self, want: Want, reason: str) -> None:
        """Hear that samples will not come."""


class Delivery:
    """Puts samples into a sink; ``ordered`` holds back, within 8 MiB, what comes too early. Belongs to one thread.

    ``full`` is set when the sink had no room, until the owner finds that it has again.
    """

    def __init__(self, sink: Sink, *, ordered: bool) -> None:
        self.sink, self.ordered = sink, ordered
        self.full = False
        self.held_samples = 0
        self.losses: Counter[str] = Counter()
        self._held_bytes = 0

    def accepts(self, line: Line, batch: Batch, size_bytes: int) -> bool:
        """Tell whether there is room for a batch: in the sink when it is next, else among what is held back."""
        if self.ordered and not line.is_next(batch):
            return self._held_bytes + size_bytes <= HOLD_BYTES
        self.full = self.full or not self.sink.has_room()
        return not self.full

    def take(self, line: Line, batch: Batch, offset: int, count: int, *, size_bytes: int, late: bool) -> None:
        """Hand a part of a batch on, or hold it back until its turn comes in `flush`.

        That is called once, behind all parts of a batch: what lies between two of them may be held back already.
        """
        part = batch if count == len(batch.t) else batch.part(batch.seq + offset, batch.seq + offset + count - 1)
        if not self.ordered:
            self.sink.put(part, size_bytes=size_bytes, late=late)
            return
        self._held_bytes += size_bytes
        self.held_samples += count
        line.hold(Held(batch=part, size_bytes=size_bytes, late=late))

    def flush(self, line: Line) -> None:
        """Hand on what has waited for its turn, as long as there is room."""
        while (held := line.ready()) is not None:
            if not self.sink.has_room():
                self.full = True
                return
            line.take()
            self._held_bytes -= held.size_bytes
            self.held_samples -= len(held.batch.t)
            self.sink.put(held.batch, size_bytes=held.size_bytes, late=held.late)

    def forget(self, line: Line) -> None:
        """Let go what is held back of a line that is followed no longer."""
        for held in line.empty():
            self._held_bytes -= held.size_bytes
            self.held_samples -= len(held.batch.t)

    def give_up(self, account: GapAccount, want: Want, reason: str) -> None:
        """Count as lost what is missing of these samples, and say so."""
        for low, high in account.give_up(want.first_seq, want.last_seq + 1):
            self.losses[reason] += high - low
            lost = Want(node_id=want.node_id, boot=want.boot, stream=want.stream, first_seq=low, last_seq=high - 1)
            self.sink.lost_for_good(lost, reason)
