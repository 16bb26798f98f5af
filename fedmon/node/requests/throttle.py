"""Throttling of junk: token buckets, and one entry for each refused researcher."""

from __future__ import annotations

import datetime
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fedmon.common.clock import utc_now

if TYPE_CHECKING:
    from fedmon.node.registers.database import Database

MAX_REFUSED = 200
REFUSED_KEPT = datetime.timedelta(days=30)
_MAX_KEYS = 1000
_MARK = "refused"


class Throttle:
    """Allows ``burst`` events of one key at once, and ``per_s`` a second in the long run; owned by one thread."""

    def __init__(self, *, burst: int, per_s: float) -> None:
        self._burst, self._per_s = float(burst), per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, key: str, count: int = 1) -> bool:
        """Count events; return whether they are within the limit."""
        now = time.monotonic()
        left, then = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_s)
        allowed = left >= count
        self._buckets[key] = (left - count if allowed else left, now)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return allowed


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A researcher that asked without being obeyed: how often, and when first and last."""

    researcher_id: str
    times: int
    first: datetime.datetime
    last: datetime.datetime


class RefusedResearchers:
    """The researchers that were refused, the latest last, for the owner to look at; of its database's thread.

    They are counted in memory, so that a flood costs no disk: `save` writes them down. An entry goes 30 days after its
    last request; of more than 200, those refused longest ago go.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        kept = msgspec.json.decode(database.mark(_MARK) or "[]", type=list[Refused])
        self._found = OrderedDict((each.researcher_id, each) for each in kept)
        self._changed = False

    def count(self, researcher_id: str) -> None:
        """Count one more refused request."""
        now, before = utc_now(), self._found.pop(researcher_id, None)
        self._found[researcher_id] = Refused(
            researcher_id=researcher_id,
            times=1 if before is None else before.times + 1,
            first=now if before is None else before.first,
            last=now,
        )
        if len(self._found) > MAX_REFUSED:
            self._found.popitem(last=False)
        self._changed = True

    def waiting(self, refuses: Callable[[str], object]) -> list[Refused]:
        """Return those that are still refused, the latest first."""
        since = utc_now() - REFUSED_KEPT
        return [each for each in reversed(self._found.values()) if each.last > since and refuses(each.researcher_id)]

    def save(self) -> None:
        """Write them down if there are new ones. Raises StorageError."""
        if self._changed:
            self._database.set_mark(_MARK, msgspec.json.encode(list(self._found.values())).decode())
            self._changed = False
