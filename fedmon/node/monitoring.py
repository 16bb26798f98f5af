"""Leases on live metrics, and the sampler and publisher that follow them."""

from __future__ import annotations

import time

from fedmon.node.leases import Granted, Lease, Leases
from fedmon.node.publisher import HOST_STREAM, Publisher
from fedmon.node.sampler import Sampler


class Monitoring:
    """Keeps the pace of sampler and publisher at what the leases ask for; owned by the router's thread.

    ``sampler`` and ``publisher`` are None on a node whose owner switched metrics off.
    """

    def __init__(self, leases: Leases, sampler: Sampler | None, publisher: Publisher | None) -> None:
        self._leases, self._sampler, self._publisher = leases, sampler, publisher

    @property
    def enabled(self) -> bool:
        """Tell whether this node measures anything."""
        return self._sampler is not None

    @property
    def streams(self) -> list[str]:
        """Name the streams of samples that this node publishes."""
        return [HOST_STREAM] if self.enabled else []

    def start(
        self, researcher_id: str, instance: str, *, interval_s: float | None, lease_s: float, live: bool
    ) -> Granted:
        """Grant or renew a lease. Raises LeaseRefusedError when there are too many."""
        granted = self._leases.start(
            researcher_id, instance, now=time.monotonic(), interval_s=interval_s, lease_s=lease_s, live=live
        )
        self.follow()
        return granted

    def stop(self, researcher_id: str, instance: str) -> None:
        """End a lease, if there is one."""
        self._leases.stop(researcher_id, instance)
        self.follow()

    def follow(self) -> float | None:
        """Set the pace that the leases ask for now; return the monotonic time of the next expiry, or None."""
        pace = self._leases.pace(time.monotonic())
        if self._sampler is not None and self._publisher is not None:
            if self._sampler.interval_s != pace.interval_s:
                self._sampler.set_interval(pace.interval_s)
            self._publisher.set_pace(interval_s=pace.interval_s, live=pace.live)
        return pace.next_expiry

    def interval_s(self) -> float:
        """Return how far apart the samples are now, in seconds."""
        return self._leases.pace(time.monotonic()).interval_s

    def leases(self) -> list[Lease]:
        """Return the leases that hold now."""
        return self._leases.held(time.monotonic())

    def capabilities(self) -> dict[str, str | None]:
        """Map what could be measured to None where it is, else to the reason why not."""
        return {} if self._sampler is None else self._sampler.capabilities()

    def metrics(self) -> list[str]:
        """Name the metrics that are measured."""
        return [] if self._sampler is None else self._sampler.metrics()

    def counters(self) -> dict[str, int]:
        """Return what was published and dropped since the start."""
        if self._publisher is None:
            return {}
        return {
            "samples_published": self._publisher.published,
            "samples_dropped": self._publisher.dropped,
            "samples_withheld": self._publisher.withheld,
        }
