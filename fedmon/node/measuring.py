"""Everything of a node that measures: the sampler with its collectors, the publisher, and what keeps the samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from fedmon.common.settings import NodeSettings
from fedmon.node.collectors import host_collectors
from fedmon.node.collectors.agent import CollectorTimes
from fedmon.node.collectors.base import Collector, Roots
from fedmon.node.publisher import HOST_STREAM, Publisher
from fedmon.node.sampler import Sampler
from fedmon.node.user_values import UserValues


class Measuring:
    """The measuring parts of one node, made from its settings; every method is safe from any thread.

    ``boot`` numbers this run of the process, ``send``, ``leaves`` and ``on_sent`` are as in Publisher.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        boot: int,
        send: Callable[[bytes], bool],
        leaves: Callable[[str], bool],
        on_sent: Callable[[Iterable[str], int], None],
    ) -> None:
        self._settings = settings
        self.publisher = Publisher(
            node_id=settings.id,
            boot=boot,
            send=send,
            leaves=leaves,
            interval_s=settings.metrics.interval_s,
            on_sent=on_sent,
        )
        self.sampler = Sampler(
            {HOST_STREAM: self._host()},
            interval_s=settings.metrics.interval_s,
            on_sample=self.publisher.publish,
            cost_budget_ratio=settings.metrics.cost_budget_ratio,
        )
        self.user_values = UserValues(self.publisher.publish)
        self._is_started = False

    @property
    def enabled(self) -> bool:
        """Whether the owner lets this node measure."""
        return self._settings.metrics.enabled

    @property
    def streams(self) -> list[str]:
        """Name the streams of samples that this node has."""
        return self.sampler.streams if self.enabled else []

    def start(self) -> None:
        """Begin to measure, unless the owner switched metrics off."""
        if self.enabled:
            self.sampler.start()
            self._is_started = True

    def stop(self) -> None:
        """End the sampler, and send what it gathered."""
        if self._is_started:
            self.sampler.stop()
        self.publisher.flush()

    def reload(self, settings: NodeSettings, leaves: Callable[[str], bool]) -> None:
        """Follow other settings from the next tick on; the pace is set by `follow`."""
        before, self._settings = self._settings, settings
        self.publisher.set_leaves(leaves)
        self.sampler.set_cost_budget(settings.metrics.cost_budget_ratio)
        if not self._is_started:
            self.start()
        elif not self.enabled:
            for stream in self.sampler.streams:
                self.sampler.remove_stream(stream)
            self.publisher.flush()
        elif settings.metrics != before.metrics:
            self.sampler.add_stream(HOST_STREAM, self._host())

    def follow(self, interval_s: float, *, live: bool) -> None:
        """Keep this pace, and close batches of streams that fell silent; called about once a second."""
        if self.sampler.asked_interval_s != interval_s:
            self.sampler.set_interval(interval_s)
        self.publisher.set_pace(interval_s=self.sampler.interval_s, live=live)
        self.publisher.close_older(time.monotonic())

    def _counts(self) -> dict[str, float | None]:
        return self.sampler.counts() | self.publisher.counts()

    def _host(self) -> list[Collector]:
        metrics = self._settings.metrics
        roots = Roots(proc=metrics.proc_root, sys=metrics.sys_root, cgroup=metrics.cgroup_root)
        return [
            *host_collectors(roots=roots, per_core=metrics.per_core, counts=self._counts),
            # The sampler does not exist yet when its collectors are made.
            CollectorTimes(lambda: self.sampler.collector_counts()),  # noqa: PLW0108
        ]
