"""Leases on live metrics, and the measuring that follows them."""

from __future__ import annotations

import time
from typing import Any

from fedmon.node.measure.leases import Granted, Lease, Leases
from fedmon.node.measure.measuring import Measuring


class Monitoring:
    """Keeps the pace of measuring at what the leases ask for; owned by the router's thread."""

    def __init__(self, leases: Leases, measuring: Measuring) -> None:
        self._leases, self.measuring = leases, measuring

    @property
    def enabled(self) -> bool:
        """Tell whether this node measures anything."""
        return self.measuring.enabled

    @property
    def streams(self) -> list[str]:
        """Name the streams of samples that this node publishes."""
        return self.measuring.streams

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
        self.measuring.follow(pace.interval_s, live=pace.live)
        return pace.next_expiry

    def interval_s(self) -> float:
        """Return how far apart the samples are now, in seconds."""
        return self._leases.pace(time.monotonic()).interval_s

    def leases(self) -> list[Lease]:
        """Return the leases that hold now."""
        return self._leases.held(time.monotonic())

    def capabilities(self) -> dict[str, str | None]:
        """Map what could be measured to None where it is, else to the reason why not."""
        return self.measuring.sampler.capabilities()

    def metrics(self) -> list[str]:
        """Name the metrics that are measured."""
        return self.measuring.sampler.metrics()

    def hardware(self) -> dict[str, Any]:
        """Describe the machine."""
        return self.measuring.hardware()

    def counts(self) -> dict[str, float]:
        """Return the ``agent_`` metrics of this moment, for a reader who watches no samples."""
        return self.measuring.counts()

    def counters(self) -> dict[str, int]:
        """Return what became of samples since the start: taken = open + recorded + waiting + never recorded."""
        publisher, sampler, recorder = self.measuring.publisher, self.measuring.sampler, self.measuring.recorder
        kept = {} if recorder is None else recorder.tally()
        return {
            **kept,
            "samples_taken": publisher.taken,
            "samples_published": publisher.published,
            "samples_dropped": publisher.dropped,
            "samples_open": publisher.open_samples,
            "samples_withheld": publisher.withheld,
            "ticks_overrun": sampler.overruns,
        }
