"""`fedmon.Reporter`: NEBULA's reporter, as a thin face over sampler, publisher and controller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.settings import BrokerSettings
from fedmon.compat.nebula.controller import BACKLOG, TIMEOUT_S
from fedmon.compat.nebula.counters import NetworkCounters
from fedmon.compat.nebula.cycle import Cycle, Enqueued
from fedmon.compat.nebula.measured import Measured
from fedmon.compat.nebula.outlets import Outlets
from fedmon.compat.nebula.settings import Generation, participant_of, read_participant, read_settings
from fedmon.compat.nebula.sinks import SINK_TIMEOUT_S, Sinks
from fedmon.compat.nebula.streams import reporter_streams
from fedmon.compat.nebula.traffic import Traffic
from fedmon.node.collectors.base import Collector
from fedmon.node.measure.sampler import MIN_INTERVAL_S
from fedmon.node.measure.user_values import UserValues

logger = logging.getLogger(__name__)

JITTER_S, JITTER_SHARE = 0.5, 0.1
RELOAD_EVERY, STOP_WITHIN_S = 50, 3.0
FINISHED_WITHIN_S = 10.0
"""How long the end of a scenario is told again until somebody confirms it."""


class Reporter(NetworkCounters):
    """Measures this machine and its own processes, and reports them together with the values of a program.

    ``config`` is NEBULA's participant mapping, an object that has it as ``.participant``, or nothing; each keyword
    from ``report_frequency`` to ``idx`` goes before the participant's key of that name. ``trainer.logger`` and each of
    ``sinks`` get what NEBULA logged (see `view`); ``cm`` tells the connections; ``broker`` (a URL or BrokerSettings)
    gets our own metrics, values and presence under ``node_id``, which no other party there may use.
    ``generation`` chooses the controller's paths and the names of the network's tags. The period differs from
    ``report_frequency`` by up to ``jitter_s`` or a tenth, so that many do not report at once; ``seed`` fixes the
    choice. ``config_file`` is read again, never written, each ``reload_every`` cycles. ``streams`` replaces what is
    measured. Its methods belong to one event loop at a time. Raises SettingsError.
    """

    def __init__(
        self,
        config: object = None,
        trainer: object = None,
        cm: object = None,
        *,
        report_frequency: float | None = None,
        grace_time_reporter: float | None = None,
        report_status_data_queue: bool | None = None,
        controller: str | None = None,
        scenario: str | None = None,
        idx: int | str | None = None,
        node_id: str | None = None,
        sinks: Sequence[object] = (),
        broker: str | BrokerSettings | None = None,
        generation: Generation = "1.0.0",
        jitter_s: float = JITTER_S,
        seed: int | None = None,
        config_file: Path | str | None = None,
        reload_every: int = RELOAD_EVERY,
        streams: Mapping[str, Sequence[Collector]] | None = None,
        http_timeout_s: float = TIMEOUT_S,
        backlog: int = BACKLOG,
        sink_timeout_s: float = SINK_TIMEOUT_S,
        finished_within_s: float = FINISHED_WITHIN_S,
    ) -> None:
        self.config, self.trainer, self.cm = config, trainer, cm
        self._keywords: dict[str, Any] = {
            "report_frequency": report_frequency,
            "grace_time_reporter": grace_time_reporter,
            "report_status_data_queue": report_status_data_queue,
            "controller": controller,
            "scenario": scenario,
            "idx": idx,
            "node_id": node_id,
        }
        self._config_file = None if config_file is None else Path(config_file)
        self._from_file: Mapping[str, Any] = {} if self._config_file is None else read_participant(self._config_file)
        self._generation = generation
        self._settings = read_settings(self._participant(), self._keywords, generation=generation)
        self._keywords["node_id"] = self._settings.node_id
        self._reload_every, self._finished_within_s = max(1, reload_every), finished_within_s
        self._jitter = random.Random(seed).uniform(-1, 1)  # noqa: S311  # spreads load, keeps no secret
        self._jitter_s, self._streams = jitter_s, streams
        self._job = f"job-{os.getpid()}"
        self._outlets = Outlets(
            self._settings,
            broker=broker,
            boot=time.time_ns() // 1_000_000,
            streams=[self._job] if streams is None else [name for name in streams if name != "host"],
            capabilities=lambda: self._measured.sampler.capabilities() if self._measured is not None else {},
            http_timeout_s=http_timeout_s,
            backlog=backlog,
            seed=seed,
        )
        self._sinks = Sinks(lambda: self.trainer, sinks, timeout_s=sink_timeout_s)
        self._traffic = Traffic()
        self._cycle = Cycle(
            self._outlets, self._sinks, node_id=self._settings.node_id, generation=generation, traffic=self._traffic,
            manager=lambda: self.cm,
        )  # fmt: skip
        self._is_finished, self._complaint = False, ""
        self._finishing = asyncio.Lock()
        self._starting: asyncio.Task[asyncio.Task[None]] | None = None
        self._reporter_task: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._measured: Measured | None = None
        self._is_running = False

    # --- what can be asked at any time -------------------------------------------------------------------------------

    @property
    def frequency(self) -> float:
        """The period that was asked for, in seconds; NEBULA calls it a frequency."""
        return self._settings.report_frequency

    @property
    def period_s(self) -> float:
        """The period that is kept, with its jitter."""
        most = min(self._jitter_s, JITTER_SHARE * self.frequency)
        return max(MIN_INTERVAL_S, self.frequency + self._jitter * most)

    @property
    def grace_time(self) -> float:
        """Seconds between `start` and the first report."""
        return self._settings.grace_time_s

    @property
    def url(self) -> str:
        """Where each status goes; empty without a controller."""
        return self._settings.status_url

    @property
    def node_id(self) -> str:
        """The name under which everything is reported."""
        return self._settings.node_id

    @property
    def counter(self) -> int:
        """How many cycles were reported."""
        return self._cycle.count

    @property
    def data_queue(self) -> asyncio.Queue[Enqueued]:
        """What was enqueued and waits for the next cycle."""
        return self._cycle.queue

    @property
    def user_values(self) -> UserValues | None:
        """Takes values of the program for the broker, from any thread and with steps; None without a broker."""
        return self._outlets.user_values

    def counts(self) -> dict[str, int]:
        """Return what went out and what did not: statuses (see ControllerCounts), values, ticks, calls of sinks."""
        return {
            **{f"statuses_{name}": count for name, count in self._outlets.counts()._asdict().items()},
            "values_dropped": self._cycle.values_dropped,
            "ticks_dropped": self._measured.dropped if self._measured is not None else 0,
            "sinks_called": self._sinks.logged,
            "sinks_failed": self._sinks.failures,
        }

    # --- what a program calls ----------------------------------------------------------------------------------------

    async def enqueue_data(self, name: str, value: Any) -> None:
        """Report a value of the program with the next cycle; at most 10,000 wait, the oldest goes first.

        Raises InvalidInputError when the name is no text.
        """
        if not isinstance(name, str):
            raise InvalidInputError(f"the name of a value is a {type(name).__name__}: give a text")
        self._cycle.enqueue(name, value)

    async def start(self) -> asyncio.Task[None]:
        """Wait for the grace time, then report in a task of its own, which is returned; once, however often called."""
        if self._reporter_task is not None and not self._reporter_task.done():
            return self._reporter_task
        if self._starting is None or self._starting.done():
            self._stop_asked = asyncio.Event()
            self._starting = asyncio.create_task(self._start(), name="Reporter_start")
        return await self._starting

    async def stop(self) -> None:
        """End reporting: what was enqueued is still logged, what was gathered is sent. `start` begins again."""
        self._stop_asked.set()
        if self._measured is not None:
            self._measured.end()
        # What is done may belong to a loop that is closed.
        if self._starting is not None and not self._starting.done():
            await asyncio.wait({self._starting})
        task = self._reporter_task
        if task is asyncio.current_task():
            return
        if task is None or task.done():
            # The end of a scenario may have been told without, or after, any reporting.
            await asyncio.to_thread(self._outlets.close)
            return
        await asyncio.wait({task}, timeout=STOP_WITHIN_S)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_WITHIN_S)

    async def run_reporter(self) -> None:
        """Report at each tick until `stop`; returns at once when it is running already."""
        if self._is_running:
            return
        self._is_running = True
        measured = self._measured
        try:
            if measured is None:
                self._stop_asked = asyncio.Event()
                measured = await self._prime()
            if not self._stop_asked.is_set():
                self._outlets.open()
                await asyncio.to_thread(measured.begin, asyncio.get_running_loop())
            while not self._stop_asked.is_set() and (tick := await measured.next()) is not None:
                await self._cycle.report(tick, self._participant, with_status=self._settings.report_status)
                await self._follow()
            await self._cycle.report_queue()
        finally:
            self._is_running, self._measured = False, None
            await asyncio.to_thread(self._close, measured)

    async def report_scenario_finished(self) -> bool:
        """Tell that this participant has finished its scenario; True only once that was confirmed.

        It is told again for up to ``finished_within_s``. The controller confirms with 200; where there is none, the
        broker does by showing that it holds our last presence. After a confirmation nothing is told twice.
        """
        async with self._finishing:
            if not self._is_finished:
                self._is_finished = await self._outlets.finish(self._participant(), self._finished_within_s)
            return self._is_finished

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def _start(self) -> asyncio.Task[None]:
        await self._prime(self.grace_time)
        self._reporter_task = asyncio.create_task(self.run_reporter(), name="Reporter_run_reporter")
        return self._reporter_task

    async def _prime(self, grace_time_s: float = 0.0) -> Measured:
        """Read everything once, so that the first report has shares of CPU time, and wait for the grace time."""
        streams = self._streams
        if streams is None:  # shares of CPU time need two readings that lie some ticks of the kernel's clock apart
            streams, grace_time_s = await asyncio.to_thread(reporter_streams, self._job), max(grace_time_s, 0.1)
        measured = self._measured = Measured(
            streams, interval_s=self.period_s, publish=self._outlets.publish, on_orphaned=self._outlets.close
        )
        await asyncio.to_thread(measured.prime)
        if measured.first is not None:
            self._cycle.prepare(measured.first)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), grace_time_s)
        except asyncio.CancelledError:
            self._measured = None
            measured.stop()
            raise
        return measured

    def _close(self, measured: Measured | None) -> None:
        if measured is not None:
            measured.stop()
        self._outlets.close()

    async def _follow(self) -> None:
        """Obey a config that changed; one that cannot be used changes nothing."""
        try:
            if self._config_file is not None and self._cycle.count % self._reload_every == 0:
                self._from_file = await asyncio.to_thread(read_participant, self._config_file)
            settings = read_settings(self._participant(), self._keywords, generation=self._generation)
        except Exception as error:  # noqa: BLE001  # the program's own mapping: whatever it does, reporting goes on
            level = logging.DEBUG if self._complaint == str(error) else logging.WARNING
            self._complaint = str(error)
            logger.log(level, "the reporter's settings stay as they were: %s", error)
            return
        # Names and addresses stay what they were at the start.
        self._settings = msgspec.structs.replace(
            self._settings, report_frequency=settings.report_frequency, report_status=settings.report_status
        )
        if self._measured is not None and self._measured.sampler.asked_interval_s != self.period_s:
            self._measured.sampler.set_interval(self.period_s)

    def _participant(self) -> Mapping[str, Any]:
        """Return what is known of the participant now; a file goes before what the program holds in memory."""
        given = participant_of(self.config)
        return {**given, **self._from_file} if self._from_file else given
