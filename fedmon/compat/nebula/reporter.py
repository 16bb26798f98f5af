"""`fedmon.Reporter`: NEBULA's reporter, as a thin face over sampler, publisher and controller."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.settings import BrokerSettings
from fedmon.compat.nebula.controller import BACKLOG, TIMEOUT_S
from fedmon.compat.nebula.measured import Measured, Tick
from fedmon.compat.nebula.outlets import Outlets
from fedmon.compat.nebula.settings import Generation, participant_of, read_participant, read_settings
from fedmon.compat.nebula.sinks import SINK_TIMEOUT_S, Sinks
from fedmon.compat.nebula.traffic import Traffic
from fedmon.compat.nebula.view import Processes, Reported, gpus, resources
from fedmon.node.collectors.base import THIS_MACHINE, Collector
from fedmon.node.measure.publisher import HOST_STREAM
from fedmon.node.measure.sampler import MIN_INTERVAL_S
from fedmon.node.measure.user_values import UserValues

logger = logging.getLogger(__name__)


def reporter_streams(job: str) -> dict[str, Sequence[Collector]]:
    """Return the machine as a whole with its GPUs, and under ``job`` this process with all that descends from it."""
    # Loaded with the first start: a program that only imports the reporter pays nothing.
    from fedmon.node.collectors import host_collectors
    from fedmon.node.collectors.job.maker import JobMaker
    from fedmon.node.collectors.nvml import nvml_collectors, open_session

    streams: dict[str, Sequence[Collector]] = {HOST_STREAM: [*nvml_collectors(open_session()), *host_collectors()]}
    try:
        watching = JobMaker(THIS_MACHINE).make(
            pids=[os.getpid()], cgroup=None, marker=f"FEDMON_REPORTER={os.getpid()}", mono=time.monotonic()
        )
        streams[job] = watching.collectors
    except FedmonError as error:
        logger.warning("the processes of this program are not measured: %s", error)
    return streams


class NetworkCounters:
    """What all interfaces of the machine carried: ``acc_`` since the first report, ``prev_`` as read at the last."""

    _traffic: Traffic

    @property
    def first_net_metrics(self) -> bool:
        """Whether the counters were not read yet."""
        return self._traffic.is_first

    @property
    def acc_bytes_sent(self) -> int:
        """Bytes sent since the first report; never falls."""
        return self._traffic.total["bytes_sent"]

    @property
    def acc_bytes_recv(self) -> int:
        """Bytes received since the first report; never falls."""
        return self._traffic.total["bytes_recv"]

    @property
    def acc_packets_sent(self) -> int:
        """Packets sent since the first report; never falls."""
        return self._traffic.total["packets_sent"]

    @property
    def acc_packets_recv(self) -> int:
        """Packets received since the first report; never falls."""
        return self._traffic.total["packets_recv"]

    @property
    def prev_bytes_sent(self) -> int:
        """Bytes sent, as the machine counts them."""
        return self._traffic.reading["bytes_sent"]

    @property
    def prev_bytes_recv(self) -> int:
        """Bytes received, as the machine counts them."""
        return self._traffic.reading["bytes_recv"]

    @property
    def prev_packets_sent(self) -> int:
        """Packets sent, as the machine counts them."""
        return self._traffic.reading["packets_sent"]

    @property
    def prev_packets_recv(self) -> int:
        """Packets received, as the machine counts them."""
        return self._traffic.reading["packets_recv"]


COUNT_TIMEOUT_S = 1.0
_ASK = "get_addrs_current_connections"


async def count_connections(manager: object, *, timeout_s: float = COUNT_TIMEOUT_S) -> int | None:
    """Return the number of direct connections; None when there is no manager or it cannot tell.

    A manager has NEBULA's ``get_addrs_current_connections(only_direct=True)``, plain or async, or a collection
    ``connections``, or is a number or collection itself; a function is called for it. Raises what it raises, and
    TimeoutError.
    """
    if not hasattr(manager, _ASK) and not hasattr(manager, "connections") and callable(manager):
        manager = await _finished(manager(), timeout_s)
    ask = getattr(manager, _ASK, None)
    if callable(ask):
        found = await _finished(ask(only_direct=True) if _takes_direct(ask) else ask(), timeout_s)
    else:
        found = getattr(manager, "connections", manager)
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    return len(found) if hasattr(found, "__len__") else None


async def _finished(result: Any, timeout_s: float) -> Any:
    return await asyncio.wait_for(result, timeout_s) if inspect.isawaitable(result) else result


def _takes_direct(ask: Any) -> bool:
    try:
        parameters = inspect.signature(ask).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(each.name == "only_direct" or each.kind is each.VAR_KEYWORD for each in parameters)


QUEUE_LIMIT = 10_000
ASK_AGAIN_S = 30.0
"""How long a connection manager that did not answer is left alone."""


class Enqueued(NamedTuple):
    """One value of the program, and when it was handed in (Unix seconds)."""

    name: str
    value: Any
    t: float


class Cycle:
    """What a reporter does at each tick; belongs to one event loop at a time.

    ``manager()`` returns the connection manager, None for none. ``report`` raises nothing: what fails is left out.
    """

    def __init__(
        self,
        outlets: Outlets,
        sinks: Sinks,
        *,
        node_id: str,
        generation: Generation,
        traffic: Traffic,
        manager: Callable[[], object],
    ) -> None:
        self._outlets, self._sinks, self._manager = outlets, sinks, manager
        self._node_id, self._generation, self._traffic = node_id, generation, traffic
        self._processes = Processes()
        self.queue: asyncio.Queue[Enqueued] = asyncio.Queue()
        self.values_dropped = 0
        self.count = 0
        self._logged = 0
        self._problem = ""
        self._asked_again_at = 0.0

    def enqueue(self, name: str, value: Any) -> None:
        """Take a value of the program; at most 10,000 wait, the oldest goes first."""
        while self.queue.qsize() >= QUEUE_LIMIT:
            self.queue.get_nowait()
            self.values_dropped += 1
        self.queue.put_nowait(Enqueued(name, value, time.time()))

    def prepare(self, first: Tick) -> None:
        """Learn where shares of CPU time begin."""
        self._processes.cpu_percent(first.values, first.mono)

    async def report(self, tick: Tick, participant: Callable[[], Mapping[str, Any]], *, with_status: bool) -> None:
        """Report once; a status that cannot be made takes nothing else away."""
        try:
            if with_status:
                self._report_status(participant, tick.t)
            await self.report_queue()
            await self._report_resources(tick)
            self._outlets.cycle_done()
        except Exception:  # one cycle is one call of a handler: the next one comes all the same
            logger.exception("a cycle of the reporter failed")
        self.count += 1

    def _report_status(self, participant: Callable[[], Mapping[str, Any]], t: float) -> None:
        try:
            self._outlets.status(participant(), t)
        except Exception:  # the program's own mapping: whatever it does, the rest is reported
            logger.exception("a status could not be made")

    async def report_queue(self) -> None:
        """Log what is enqueued now, the oldest first."""
        for _ in range(self.queue.qsize()):
            name, value, t = self.queue.get_nowait()
            self._outlets.value(name, value, t)
            await self._log({name: value}, t, time.monotonic() - (time.time() - t))

    async def _report_resources(self, tick: Tick) -> None:
        self._traffic.look(tick.values)
        found = resources(
            tick.values,
            cpu_process=self._processes.cpu_percent(tick.values, tick.mono),
            traffic=self._traffic,
            connections=await self._connections(),
            generation=self._generation,
        )
        await self._log(found, tick.t, tick.mono)
        for gpu in gpus(tick.values):
            await self._log(gpu, tick.t, tick.mono)

    async def _log(self, values: Mapping[str, Any], t: float, mono: float) -> None:
        await self._sinks.log(Reported(values, t=t, mono=mono, node_id=self._node_id, seq=self._logged))
        self._logged += 1

    async def _connections(self) -> int | None:
        try:
            manager = self._manager()
            if manager is None or time.monotonic() < self._asked_again_at:
                return None
            count = await count_connections(manager)
        except TimeoutError:
            # Asking it at each tick would let every report come a second late.
            self._asked_again_at = time.monotonic() + ASK_AGAIN_S
            logger.warning("the connections are not known: their manager did not answer in time")
            return None
        except Exception as error:  # noqa: BLE001  # the program's own object: whatever it is, the rest is reported
            level = logging.DEBUG if self._problem == str(error) else logging.WARNING
            self._problem = str(error)
            logger.log(level, "the connections are not known: %s: %s", type(error).__name__, error)
            return None
        self._problem = ""
        return count


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
