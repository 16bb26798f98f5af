"""Monitoring leases: which researchers want live metrics, how often, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from fedmon.common.wire.messages import MAX_LEASE_S, ErrorCode, Monitor
from fedmon.node.requests.dialect import DeclinedError

MAX_LEASES = 1000
MAX_LEASES_OF_ONE = 100


class MonitorLease(msgspec.Struct, frozen=True, kw_only=True):
    """A researcher's wish for samples every ``interval_s`` (None: the owner's default) until ``until``, monotonic.

    ``live`` asks for each sample at once, not in batches.
    """

    interval_s: float | None
    live: bool
    until: float


class LeaseTable:
    """The leases of one node, at most 1000, and 100 of one researcher; owned by the router's thread.

    The node's interval is the smallest of all leases within the owner's limits: not below ``min_interval_s``, and not
    above ``default_interval_s``, so that no researcher can blind the owner or the others. ``follow(interval_s, live)``
    sets the pace of measuring.
    """

    def __init__(
        self,
        *,
        default_interval_s: float,
        min_interval_s: float,
        follow: Callable[[float, bool], object] = lambda _interval_s, _live: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follow, self._monotonic = follow, monotonic
        self._leases: dict[tuple[str, str], MonitorLease] = {}
        self.set_limits(default_interval_s=default_interval_s, min_interval_s=min_interval_s)

    def set_limits(self, *, default_interval_s: float, min_interval_s: float) -> None:
        """Obey other limits of the owner from now on."""
        self._default_s, self._min_s = max(default_interval_s, min_interval_s), min_interval_s

    def start(self, request: Monitor) -> None:
        """Grant or renew the lease of a request. Raises DeclinedError if there are too many."""
        who, held = request.researcher_id, self.held()
        if (who, request.instance) not in held:
            mine = sum(holder == who for holder, _ in held)
            for whose, number, most in (
                ("this node", len(held), MAX_LEASES),
                (f"researcher {who}", mine, MAX_LEASES_OF_ONE),
            ):
                if number >= most:
                    raise DeclinedError(
                        ErrorCode.BUSY,
                        f"{whose} already holds {most} monitoring leases on this node, which is the limit; stop "
                        f"unneeded ones, or try again in {MAX_LEASE_S:.0f} s",
                    )
        until = self._monotonic() + request.lease_s
        lease = MonitorLease(interval_s=request.interval_s, live=request.live, until=until)
        self._leases[who, request.instance] = lease
        self.apply()

    def stop(self, request: Monitor) -> None:
        """End the lease of the instance that asks for it, if there is one."""
        self._leases.pop((request.researcher_id, request.instance), None)
        self.apply()

    def end_refused(self, is_refused: Callable[[str], bool]) -> None:
        """End the leases of researchers whom the policy refuses now."""
        self._leases = {key: lease for key, lease in self._leases.items() if not is_refused(key[0])}

    def apply(self) -> float:
        """Set the pace of the present leases, and return its interval; called each second once the node measures."""
        self._leases = self.held()
        interval_s = self.interval_s()
        self._follow(interval_s, any(lease.live for lease in self._leases.values()))
        return interval_s

    def interval_s(self) -> float:
        """Return the interval between samples in seconds, by the present leases."""
        return min(map(self.granted_s, self.held().values()), default=self._default_s)

    def granted_s(self, lease: MonitorLease) -> float:
        """Return the interval of a lease within the owner's limits, in seconds."""
        return min(max(lease.interval_s or self._default_s, self._min_s), self._default_s)

    def held(self) -> dict[tuple[str, str], MonitorLease]:
        """Return the present leases by researcher and instance; safe from any thread."""
        now = self._monotonic()
        return {key: lease for key, lease in list(self._leases.items()) if lease.until > now}
