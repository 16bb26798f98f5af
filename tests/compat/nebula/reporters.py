"""What the tests of the reporter hand it: sinks, collectors whose values the test chooses, a participant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant
from fedmon.compat.nebula.reporter import Reporter, Tick
from fedmon.compat.nebula.view import Reported
from fedmon.node.collectors.base import Lane, Reading

T = TypeVar("T")

GIB = 1024**3
HOST: dict[str, float | None] = {
    "host_cpu_busy_ratio": 0.25,
    "host_memory_total_bytes": 8 * GIB,
    "host_memory_available_bytes": 6 * GIB,
    'host_filesystem_size_bytes{mountpoint="/"}': 100.0,
    'host_filesystem_free_bytes{mountpoint="/"}': 60.0,
    'host_filesystem_available_bytes{mountpoint="/"}': 40.0,
    'host_temperature_celsius{chip="coretemp-0",sensor="Package id 0"}': 41.0,
    'host_network_transmit_bytes_total{interface="eth0"}': 5_000_000_000,
    'host_network_receive_bytes_total{interface="eth0"}': 7_000_000_000,
    'host_network_transmit_packets_total{interface="eth0"}': 5_000,
    'host_network_receive_packets_total{interface="eth0"}': 7_000,
    "job_cpus_busy": 1.5,
    "job_memory_rss_bytes": GIB,
}
"""What one tick holds on a machine where everything is measured."""


class Logger:
    """A sink that keeps what it was given."""

    def __init__(self) -> None:
        self.logged: list[Reported] = []

    def log_data(self, values: Reported) -> None:
        self.logged.append(values)

    def of(self, tag: str) -> list[float]:
        return [values[tag] for values in self.logged if tag in values]


class AsyncLogger(Logger):
    """The same, async."""

    async def log_data(self, values: Reported) -> None:  # type: ignore[override]  # as some loggers are
        await asyncio.sleep(0)
        self.logged.append(values)


class Trainer:
    """A trainer with a logger."""

    def __init__(self, logger: object) -> None:
        self.logger = logger


class Scripted:
    """A collector whose values the test chooses; counts how often it was opened and closed."""

    name = "scripted"
    lane = Lane.FAST

    def __init__(self, values: Callable[[], Mapping[str, float | None]] = lambda: HOST) -> None:
        self._values = values
        self.reads = self.closes = 0

    def collect(self, _now: Instant) -> Reading:
        self.reads += 1
        return Reading(self._values())

    def probe(self) -> dict[str, str | None]:
        return {}

    def close(self) -> None:
        self.closes += 1


class Neighbours:
    """A connection manager as NEBULA's."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)

    async def get_addrs_current_connections(self, only_direct: bool = False, myself: bool = False) -> set[str]:
        assert only_direct
        assert not myself
        return self.addresses


def participant(**groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return a participant that reports fast and at once; ``groups`` add to its groups."""
    found: dict[str, Any] = {
        "reporter_args": {"grace_time_reporter": 0, "report_frequency": 0.2, "report_status_data_queue": True},
        "scenario_args": {"name": "first-run", "controller": "nebula-test", "federation": "DFL"},
        "device_args": {"idx": 3, "uid": "node-3", "role": "trainer"},
    }
    for name, group in groups.items():
        found[name] = {**found.get(name, {}), **group}
    return found


def reporter(
    config: object = None, trainer: object = None, cm: object = None, *, scripted: Scripted | None = None, **more: Any
) -> Reporter:
    """Return a reporter over scripted values, without jitter."""
    streams = {"host": [scripted or Scripted()]}
    given = participant() if config is None else config
    return Reporter(given, trainer, cm, **{"streams": streams, "jitter_s": 0.0, "node_id": "node-3", **more})


def run(steps: Coroutine[Any, Any, T], within_s: float = 50.0) -> T:
    """Run a test's steps on an event loop of its own."""

    async def limited() -> T:
        return await asyncio.wait_for(steps, within_s)

    return asyncio.run(limited())


async def until(condition: Callable[[], T], within_s: float = 30.0) -> T:
    """Wait on the event loop until a condition is true."""
    deadline, tick = Deadline(within_s), asyncio.Event()
    while not (value := condition()):
        assert not deadline.passed(), f"it did not come true within {within_s:g} s"
        try:
            await asyncio.wait_for(tick.wait(), 0.005)
        except TimeoutError:
            continue
    return value


async def reported(ours: Reporter, condition: Callable[[], object]) -> None:
    """Start a reporter, wait until a condition is true, and stop it."""
    await ours.start()
    await until(condition)
    await ours.stop()


def one_by_one(
    ticks: list[Mapping[str, float | None]], *sinks: object, cm: object = None, generation: Any = "1.0.0"
) -> Reporter:
    """Report ticks that lie one second apart, without any thread; returns the reporter."""
    ours = reporter(cm=cm, sinks=sinks, generation=generation, node_id="n", sink_timeout_s=1.0)

    async def steps() -> None:
        for number, values in enumerate(ticks):
            await ours._report_tick(Tick(1.7e9 + number, 100.0 + number, values))

    run(steps())
    return ours
