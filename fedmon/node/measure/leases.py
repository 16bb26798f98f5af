"""Who wants live metrics, how often, and until when; time is passed in."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.wire.messages import MAX_LEASE_S

MAX_LEASES = 1000
MAX_LEASES_OF_ONE = 100


class LeaseRefusedError(FedmonError):
    """A lease is not granted because the node already holds as many as it can."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a researcher that wants samples every ``interval_s`` until ``until`` on the monotonic clock.

    Without ``interval_s`` it is content with the owner's own pace. ``live`` asks for each sample at once; otherwise
    samples come in batches.
    """

    researcher_id: str
    instance: str
    interval_s: float | None
    live: bool
    until: float


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How the node samples now; ``next_expiry`` is when that may change by itself, None without a lease."""

    interval_s: float
    live: bool
    next_expiry: float | None


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease brought: the node's interval with it, and how long it holds unless renewed."""

    interval_s: float
    lease_s: float


class Leases:
    """The leases of one node: at most 1000, and 100 of one researcher. Owned by one thread.

    The node's interval is the smallest that a lease asks for, kept between the owner's two limits: not faster than
    ``min_interval_s``, and not slower than ``default_interval_s``, so that nobody can blind the owner or the others.
    Times named ``now`` are monotonic seconds.
    """

    def __init__(self, *, default_interval_s: float, min_interval_s: float) -> None:
        self._leases: dict[tuple[str, str], Lease] = {}
        self.set_limits(default_interval_s=default_interval_s, min_interval_s=min_interval_s)

    def set_limits(self, *, default_interval_s: float, min_interval_s: float) -> None:
        """Obey other limits of the owner from now on; what leases ask for is kept between them."""
        self._default_s = max(default_interval_s, min_interval_s)
        self._min_s = min_interval_s

    def start(
        self,
        researcher_id: str,
        instance: str,
        *,
        now: float,
        interval_s: float | None = None,
        lease_s: float = 30.0,
        live: bool = True,
    ) -> Granted:
        """Grant or renew a lease; without ``interval_s`` it asks for the owner's default.

        Raises LeaseRefusedError when there are too many.
        """
        self._expire(now)
        key = (researcher_id, instance)
        if key not in self._leases:
            self._check_room(researcher_id)
        held_s = min(max(lease_s, 0.0), MAX_LEASE_S)
        self._leases[key] = Lease(
            researcher_id=researcher_id,
            instance=instance,
            interval_s=interval_s,
            live=live,
            until=now + held_s,
        )
        return Granted(interval_s=self.pace(now).interval_s, lease_s=held_s)

    def stop(self, researcher_id: str, instance: str) -> bool:
        """End a lease; tell whether there was one."""
        return self._leases.pop((researcher_id, instance), None) is not None

    def end_refused(self, is_refused: Callable[[str], bool]) -> None:
        """End the leases of researchers that are not obeyed any more."""
        self._leases = {key: lease for key, lease in self._leases.items() if not is_refused(lease.researcher_id)}

    def pace(self, now: float) -> Pace:
        """Return how the node samples with the leases that hold at ``now``."""
        self._expire(now)
        leases = self._leases.values()
        return Pace(
            interval_s=min((self._allowed(lease.interval_s) for lease in leases), default=self._default_s),
            live=any(lease.live for lease in leases),
            next_expiry=min((lease.until for lease in leases), default=None),
        )

    def held(self, now: float) -> list[Lease]:
        """Return the leases that hold at ``now``, for the owner to see."""
        self._expire(now)
        return list(self._leases.values())

    def _allowed(self, interval_s: float | None) -> float:
        return min(max(interval_s or self._default_s, self._min_s), self._default_s)

    def _check_room(self, researcher_id: str) -> None:
        if len(self._leases) >= MAX_LEASES:
            raise LeaseRefusedError(
                f"this node already holds {MAX_LEASES} monitoring leases, which is its limit; try again in"
                f" {MAX_LEASE_S:.0f} s"
            )
        if sum(owner == researcher_id for owner, _ in self._leases) >= MAX_LEASES_OF_ONE:
            raise LeaseRefusedError(
                f"researcher {researcher_id} already holds {MAX_LEASES_OF_ONE} monitoring leases on this node, which"
                " is the limit for one; stop those that are not needed"
            )

    def _expire(self, now: float) -> None:
        expired = [key for key, lease in self._leases.items() if lease.until <= now]
        for key in expired:
            del self._leases[key]
