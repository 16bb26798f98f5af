"""One stream of one node as one consumer follows it, through every boot of that node."""

from __future__ import annotations

import heapq

import msgspec

from fedmon.common.metrics.batch import Batch
from fedmon.researcher.samples.gaps import GapAccount

MAX_BOOTS = 100
MAX_MISSING_RANGES = 1_000


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that a consumer misses, ``first_seq`` to ``last_seq``, both included.

    With ``probe`` only the time of that one sample is wanted.
    """

    node_id: str
    boot: int
    stream: str
    first_seq: int
    last_seq: int
    probe: bool = False


class Search(msgspec.Struct, kw_only=True):
    """Looking for the first sample of a boot that is not older than ``since``: one of ``low`` to ``high``."""

    boot: int
    since: float
    low: int
    high: int
    end: int

    @property
    def middle(self) -> int:
        """The sample whose time tells most."""
        return (self.low + self.high) // 2

    def told(self, t: float | None) -> bool:
        """Take the time of the middle sample, null when it is gone; return whether the search is over."""
        if t is not None and t >= self.since:
            self.high = self.middle
        else:
            self.low = self.middle + 1
        return self.low >= self.high


class Held(msgspec.Struct, kw_only=True):
    """A batch that waits for what comes before it."""

    batch: Batch
    size_bytes: int
    late: bool

    def __lt__(self, other: Held) -> bool:
        return (self.batch.boot, self.batch.seq) < (other.batch.boot, other.batch.seq)


class Line:
    """Accounts by boot, and the batches that wait for their turn; belongs to one thread.

    ``opened`` is false until it is known where the line begins. Boots below ``done`` are over for this consumer;
    boots below ``closed_below`` are over for the node, which has told what it keeps of them.
    """

    def __init__(self, *, opened: bool = True) -> None:
        self.accounts: dict[int, GapAccount] = {}
        self.done = self.closed_below = 0
        self.opened = opened
        self.search: Search | None = None
        self._held: list[Held] = []

    @property
    def current(self) -> int:
        """The boot whose samples come next."""
        return min(self.accounts, default=self.done)

    def add(self, boot: int, *, begin: int | None) -> GapAccount:
        """Begin to account for a boot."""
        account = self.accounts[boot] = GapAccount(begin)
        return account

    def back(self, boot: int, *, begin: int, end: int) -> None:
        """Let a boot begin at ``begin``, whether it was heard already or not, and exist up to ``end``."""
        account = self.accounts.get(boot)
        if account is None:
            account = self.add(boot, begin=begin)
        else:
            account.begin_back(begin)
        account.exists(end)

    def missing(self) -> tuple[int, int, int] | None:
        """Return boot, first number and end of the oldest range that is missing."""
        for boot in sorted(self.accounts):
            if self.accounts[boot].missing:
                return boot, *self.accounts[boot].missing[0]
        return None

    def want(self, node_id: str, stream: str) -> Want | None:
        """Return what is to be pulled next, null for nothing."""
        if self.search is not None:
            seq, boot = self.search.middle, self.search.boot
            return Want(node_id=node_id, boot=boot, stream=stream, first_seq=seq, last_seq=seq, probe=True)
        missing = self.missing()
        if missing is None:
            return None
        boot, first, end = missing
        return Want(node_id=node_id, boot=boot, stream=stream, first_seq=first, last_seq=end - 1)

    def hold(self, held: Held) -> None:
        """Keep a batch until its turn comes."""
        heapq.heappush(self._held, held)

    def empty(self) -> list[Held]:
        """Take every batch that waits."""
        held, self._held = self._held, []
        return held

    def is_next(self, batch: Batch) -> bool:
        """Tell whether nothing is to come before this batch."""
        return self.opened and batch.boot == self.current and batch.seq <= self.accounts[batch.boot].edge

    def ready(self) -> Held | None:
        """Return the batch whose turn it is, without taking it; goes on to the next boot when one is over."""
        while self.opened and self.accounts:
            boot = self.current
            account = self.accounts[boot]
            if self._held and (self._held[0].batch.boot, self._held[0].batch.seq) < (boot, account.edge):
                return self._held[0]
            if not self._is_over(boot, account):
                return None
            del self.accounts[boot]
            self.done = boot + 1
        return None

    def take(self) -> Held:
        """Take the batch that `ready` returned."""
        return heapq.heappop(self._held)

    def forget_done(self) -> None:
        """Drop the accounts of boots that are over and complete."""
        while self.accounts and self._is_over(boot := self.current, self.accounts[boot]):
            del self.accounts[boot]
            self.done = boot + 1

    def _is_over(self, boot: int, account: GapAccount) -> bool:
        return boot < self.closed_below and not account.missing and len(self.accounts) > 1
