"""Everything that was heard while watching: the newest values of each stream, what is missing, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from fedmon.common.metrics.batch import is_user_stream
from fedmon.common.metrics.series import metric_name
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.cli.watching.latest import Latest
from fedmon.researcher.samples.gaps import GapAccount
from fedmon.researcher.samples.watch import LiveSample

SILENT_AFTER_S = 15.0
"""A node that sent nothing for three of its default intervals is shown as silent."""


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """What some nodes do not measure, or miss at present, and why."""

    metric: str
    reason: str
    nodes: tuple[str, ...]


class WatchState:
    """Takes samples, and what nodes said of what they measure. Belongs to one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest: dict[tuple[str, str], Latest] = {}
        self._accounts: dict[tuple[str, int, str], GapAccount] = {}
        self._heard: dict[str, float] = {}
        self.samples = 0
        self.late = 0

    def take(self, sample: LiveSample) -> None:
        """Take a sample of any stream."""
        node = str(sample.node_id)
        self.samples += 1
        self.late += sample.late
        self._heard[node] = self._clock()
        self._accounts.setdefault((node, sample.boot, sample.stream), GapAccount()).arrived(sample.seq, 1)
        self._latest.setdefault((node, sample.stream), Latest()).take(sample)

    @property
    def nodes(self) -> list[str]:
        """The nodes that were heard, by name."""
        return sorted(self._heard)

    def streams(self, prefix: str) -> list[tuple[str, str, Latest]]:
        """Return node, stream and newest values of each stream whose name begins so; ended jobs are left out."""
        return [
            (node, stream, latest)
            for (node, stream), latest in sorted(self._latest.items())
            if stream.startswith(prefix) and not self._has_ended(node, latest)
        ]

    def latest(self, node: str, stream: str) -> Latest | None:
        """Return the newest values of a stream; null when it was not heard of."""
        return self._latest.get((node, stream))

    def missing(self, node: str) -> int:
        """Return how many samples of a node are known to exist and did not arrive so far."""
        return sum(account.pending for (its, _, _), account in self._accounts.items() if its == node)

    def silent_s(self, node: str) -> float | None:
        """Return how long a node has sent nothing, when that is longer than it should be."""
        quiet_s = self._clock() - self._heard.get(node, self._clock())
        host = self.latest(node, "host")
        interval_s = host.value("agent_interval_seconds") if host is not None else None
        return quiet_s if quiet_s > max(SILENT_AFTER_S, 3 * (interval_s or 0.0)) else None

    def absent(self, capabilities: Mapping[str, MonitorReply]) -> list[Absent]:
        """Return what is not measured or missed now, grouped by reason: what concerns most nodes comes first."""
        found: dict[tuple[str, str], set[str]] = {}
        for node, reply in capabilities.items():
            for name, reason in reply.capabilities.items():
                if reason:
                    found.setdefault((metric_name(name), _short(reason)), set()).add(str(node))
        for (node, _), latest in self._latest.items():
            for series, reason in latest.missed().items():
                found.setdefault((metric_name(series), _short(reason)), set()).add(node)
        merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (metric, reason), nodes in sorted(found.items()):
            merged.setdefault((reason, tuple(sorted(nodes))), []).append(metric)
        groups = [
            Absent(metric=_named(metrics), reason=reason, nodes=nodes) for (reason, nodes), metrics in merged.items()
        ]
        return sorted(groups, key=lambda one: (-len(one.nodes), one.metric))

    def _has_ended(self, node: str, latest: Latest) -> bool:
        """Tell whether a stream fell silent while its node did not."""
        host = self._latest.get((node, "host"))
        if host is None or host.newest is None or latest.newest is None or latest is host:
            return False
        if is_user_stream(latest.newest.stream):
            return False
        return latest.newest.boot != host.newest.boot or host.newest.mono - latest.newest.mono > SILENT_AFTER_S


def _short(reason: str) -> str:
    return " ".join(reason.split())[:200]


def _named(metrics: list[str]) -> str:
    """Name metrics that are missing together: one by its name, many by how they begin and their number."""
    names = sorted(set(metrics))
    if len(names) <= 2:
        return ", ".join(names)
    prefixes = sorted({name.split("_", 1)[0] for name in names})
    return f"{', '.join(f'{prefix}_*' for prefix in prefixes[:4])} ({len(names)} metrics)"
