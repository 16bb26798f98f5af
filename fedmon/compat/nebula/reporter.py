"""`fedmon.Reporter`: NEBULA's reporter over the node's sampler and publisher."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import inspect
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.metrics.sample import USER_STREAM, Sample
from fedmon.common.metrics.series import metric_name, series
from fedmon.common.settings.broker import BrokerSettings
from fedmon.common.settings.sources import load_broker
from fedmon.common.wire.messages import Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.compat.nebula.controller import BACKLOG, TIMEOUT_S, Complaints, Controller, status_body
from fedmon.compat.nebula.settings import (
    Generation,
    participant_of,
    read_participant,
    read_settings,
    section,
)
from fedmon.compat.nebula.view import Reported, Traffic, gpus, resources
from fedmon.node.collectors.base import THIS_MACHINE, Collector
from fedmon.node.measure.publisher import HOST_STREAM, Publisher, UserValues
from fedmon.node.measure.sampler import MIN_INTERVAL_S, Sampler
from fedmon.node.requests.dialect import echo

if TYPE_CHECKING:
    from fedmon.node.broker_link import BrokerLink
    from fedmon.node.collectors.job.maker import JobMaker

logger = logging.getLogger(__name__)

QUEUE_LIMIT = 10_000
MAX_WAITING = 256
"""Ticks that a busy event loop may lag behind before the oldest is dropped."""
SINK_TIMEOUT_S, LEFT_ALONE_S = 5.0, 30.0
"""The longest call of a sink or connection manager, and how long one that hung is not called again."""
JITTER_S, JITTER_SHARE = 0.5, 0.1
RELOAD_EVERY, STOP_WITHIN_S = 50, 3.0
FINISHED, FINISHED_WITHIN_S = "user_scenario_finished", 10.0
"""The metric of the end of a scenario, and how long that end is repeated until it is confirmed."""
CLOSE_WITHIN_S = 1.0
SLOWLY_READ = frozenset(
    {"host_temperature_celsius", *(f"host_filesystem_{what}_bytes" for what in ("size", "free", "available"))}
)
"""Metrics of slow lanes, whose last reading is in each report."""


def reporter_streams(job: str) -> tuple[dict[str, Sequence[Collector]], JobMaker]:
    """Return the collectors of the machine and its GPUs, and under ``job`` of this process and its descendants.

    The JobMaker looks for new processes until its `rest` is called.
    """
    # Loaded with the first start: a program that only imports the reporter pays nothing.
    from fedmon.node.collectors.host import host_collectors
    from fedmon.node.collectors.job.maker import JobMaker
    from fedmon.node.collectors.nvml import nvml_collectors, open_session

    streams: dict[str, Sequence[Collector]] = {HOST_STREAM: [*nvml_collectors(open_session()), *host_collectors()]}
    marker, maker = f"FEDMON_REPORTER={os.getpid()}", JobMaker(THIS_MACHINE)
    try:
        made = maker.make(pids=[os.getpid()], cgroup=None, marker=marker, mono=time.monotonic())
        streams[job] = made.collectors
    except FedmonError as error:
        logger.warning("the processes of this program are not measured: %s", error)
    return streams, maker


class Tick(NamedTuple):
    """The values of all streams at one instant, with the last ones of slow lanes."""

    t: float
    mono: float
    values: Mapping[str, float | None]


class Ticks:
    """The node's sampler for an event loop that it never waits for; made for each start, on that loop.

    ``publish(stream, sample)`` gets every sample, on the sampler's thread. `prime` comes first, because shares of CPU
    time need two readings. `sampler.start` and awaiting `next` follow; ``sampler.stop`` and `end` come last.
    """

    def __init__(
        self, streams: Mapping[str, Sequence[Collector]], *, interval_s: float, publish: Callable[[str, Sample], object]
    ) -> None:
        self._publish, self._loop = publish, asyncio.get_running_loop()
        self.sampler = Sampler({HOST_STREAM: (), **streams}, interval_s=interval_s, on_tick=self._on_tick)
        self._held: dict[str, float | None] = {}
        self._waiting: collections.deque[Tick] = collections.deque(maxlen=MAX_WAITING)
        self._arrived = asyncio.Event()
        self._is_ended = False
        self.dropped = 0

    def prime(self) -> None:
        """Read everything once; the values are not reported."""
        self._tick(self.sampler.sample())

    async def next(self) -> Tick | None:
        """Return the next tick; None after all of them once `end` was called."""
        while not (self._waiting or self._is_ended):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), 1.0)
            self._arrived.clear()
            self.sampler.check_stuck()
        return self._waiting.popleft() if self._waiting else None

    def end(self) -> None:
        """Let `next` return None after the ticks that wait; on the event loop."""
        self._is_ended = True
        self._arrived.set()

    # --- on the sampler's thread -------------------------------------------------------------------------------------

    def _on_tick(self, samples: Mapping[str, Sample]) -> None:
        for stream, sample in samples.items():
            if sample.values:
                self._publish(stream, sample)
        self.dropped += len(self._waiting) == MAX_WAITING
        self._waiting.append(self._tick(samples))
        if not self._arrived.is_set():
            with contextlib.suppress(RuntimeError):  # the program closed its loop without a stop
                self._loop.call_soon_threadsafe(self._arrived.set)

    def _tick(self, samples: Mapping[str, Sample]) -> Tick:
        values = {key: value for sample in samples.values() for key, value in sample.values.items()}
        self._held |= {key: value for key, value in values.items() if metric_name(key) in SLOWLY_READ}
        return Tick(samples[HOST_STREAM].t, samples[HOST_STREAM].mono, {**self._held, **values})


class UserCalls:
    """Calls objects of a program: plain ones, and async ones for at most ``timeout_s``.

    One that fails is logged, and one that hangs is not called for a while.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._complaints = Complaints()
        self._left_alone: dict[int, float] = {}

    async def call(self, target: object, function: Callable[[], Any]) -> Any:
        """Return the result of a function of ``target``; None if it fails, or hung lately."""
        if time.monotonic() < self._left_alone.get(id(target), 0.0):
            return None
        try:
            found = function()
            return await self._finish(found, target) if inspect.isawaitable(found) else found
        except Exception as error:  # the program's own object: the reporter goes on
            text = f"{type(target).__name__} failed: {type(error).__name__}: {error}"
            self._complaints.log(f"{id(target)} {error!r:.80}", text)
            logger.debug("an object of the program failed", exc_info=True)
            return None

    async def _finish(self, pending: Awaitable[object], target: object) -> object:
        """Wait for an async function. Raises its error, and TimeoutError."""
        task = asyncio.ensure_future(pending)
        try:
            # One that cancels itself must not look as if the reporter had been cancelled.
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            task.cancel()
        if not done:
            self._left_alone[id(target)] = time.monotonic() + LEFT_ALONE_S
            raise TimeoutError(f"it took more than {self._timeout_s:g} s")
        if task.cancelled():
            raise RuntimeError("it cancelled itself")
        return task.result()


def _write(sink: Any, values: Reported) -> object:
    """Hand values to a sink: to its ``log_data``, with ``t`` if it takes that, else with their number as a step."""
    if not callable(getattr(sink, "log_data", None)):
        return sink.log_metrics(values, step=values.seq)
    with contextlib.suppress(ValueError):  # a builtin that has no signature
        if "t" in inspect.signature(sink.log_data).parameters:
            return sink.log_data(values, t=values.t)
    return sink.log_data(values)


def _counter(kind: str, *, reading: bool = False) -> Any:
    since = "as the machine counts them, at the last report" if reading else "since the first report; never falls"

    def get(reporter: Reporter) -> int:
        traffic = reporter._traffic  # noqa: SLF001  # this is a part of the class
        return (traffic.reading if reading else traffic.total)[kind]

    return property(get, doc=f"{kind.replace('_', ' ')} of all interfaces, {since}.")


class Reporter:
    """Measures this machine and its own processes, and reports them together with the values of a program.

    ``config`` is NEBULA's participant mapping, an object that has it as ``.participant``, or nothing; each keyword from
    ``report_frequency`` to ``node_id`` overrides the participant's key of that name. ``trainer.logger`` and each of
    ``sinks`` get NEBULA's tags (see `view`); ``cm`` has the connections; ``broker`` (BrokerSettings, or a URL that
    FEDMON_BROKER_* variables complete) gets our own metrics, values and presence under ``node_id`` (default: the user
    in the URL), which no other party there may use. ``generation`` chooses the controller's paths and the names of the
    network's tags. The period differs from ``report_frequency`` by up to ``jitter_s`` or a tenth, so that many do not
    report at once; ``seed`` fixes the choice. ``config_file`` is read again, never written, each ``reload_every``
    cycles. ``streams`` replaces the collectors. Its methods belong to one event loop at a time. Raises SettingsError.
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
        self.config, self.trainer, self.cm, self._generation = config, trainer, cm, generation
        if isinstance(broker, str):
            url, broker = broker, load_broker(broker, os.environ)
            node_id = node_id or (broker.username if "@" in url else None)  # a broker with users drops another's
        self._broker = broker
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
        self._settings = own = read_settings(self._participant(), self._keywords, generation=generation)
        self._reload_every, self._finished_within_s = max(1, reload_every), finished_within_s
        self._jitter = random.Random(seed).uniform(-1, 1)  # noqa: S311  # spreads load, keeps no secret
        self._jitter_s, self._streams, self._job = jitter_s, streams, f"job-{os.getpid()}"
        others = [self._job] if streams is None else [name for name in streams if name != HOST_STREAM]
        self._stream_names = [HOST_STREAM, *others, USER_STREAM]
        self._boot = time.time_ns() // 1_000_000
        self._publisher = self._made_publisher()
        self._user_values = None if broker is None else UserValues(self._publisher.publish)
        self._controller = Controller(
            status_url=own.status_url, done_url=own.done_url, idx=own.idx, timeout_s=http_timeout_s, backlog=backlog
        )
        self._sinks, self._calls = sinks, UserCalls(timeout_s=sink_timeout_s)
        self._traffic, self._queue = Traffic(), asyncio.Queue[tuple[str, Any, float]]()
        self._values_dropped = self._count = self._logged = self._statuses = self._connections = 0
        self._is_finished, self._complaints = False, Complaints()
        self._finishing, self._stop_asked, self._begun = asyncio.Lock(), asyncio.Event(), asyncio.Event()

    # --- state -------------------------------------------------------------------------------------------------------

    _reporter_task: asyncio.Task[None] | None = None
    _ticks: Ticks | None = None
    _maker: JobMaker | None = None
    _link: BrokerLink | None = None

    acc_bytes_sent, acc_bytes_recv = _counter("bytes_sent"), _counter("bytes_recv")
    acc_packets_sent, acc_packets_recv = _counter("packets_sent"), _counter("packets_recv")
    prev_bytes_sent, prev_bytes_recv = _counter("bytes_sent", reading=True), _counter("bytes_recv", reading=True)
    prev_packets_sent = _counter("packets_sent", reading=True)
    prev_packets_recv = _counter("packets_recv", reading=True)

    @property
    def first_net_metrics(self) -> bool:
        """Whether the network's counters were not read yet."""
        return self._traffic.is_first

    @property
    def frequency(self) -> float:
        """The requested period, in seconds; NEBULA calls it a frequency."""
        return self._settings.report_frequency

    @property
    def period_s(self) -> float:
        """The period with its jitter."""
        most = min(self._jitter_s, JITTER_SHARE * self.frequency)
        return max(MIN_INTERVAL_S, self.frequency + self._jitter * most)

    @property
    def grace_time(self) -> float:
        """Seconds between `start` and the first report."""
        return self._settings.grace_time_s

    @property
    def url(self) -> str:
        """The address of statuses; empty without a controller."""
        return self._settings.status_url

    @property
    def node_id(self) -> str:
        """The name under which everything is reported."""
        return self._settings.node_id

    @property
    def counter(self) -> int:
        """The number of cycles reported."""
        return self._count

    @property
    def data_queue(self) -> asyncio.Queue[tuple[str, Any, float]]:
        """The values that wait for the next cycle: their name, the value, and when it was enqueued (Unix seconds)."""
        return self._queue

    @property
    def user_values(self) -> UserValues | None:
        """Takes values of the program for the broker, from any thread and with steps; None without a broker."""
        return self._user_values

    def counts(self) -> dict[str, int]:
        """Return the counts of statuses (see `controller.STATUSES`), and of dropped values and ticks."""
        return {
            **{f"statuses_{name}": count for name, count in self._controller.counts().items()},
            "values_dropped": self._values_dropped,
            "ticks_dropped": self._ticks.dropped if self._ticks is not None else 0,
        }

    # --- calls of a program ------------------------------------------------------------------------------------------

    async def enqueue_data(self, name: str, value: Any) -> None:
        """Report a value of the program with the next cycle; at most 10,000 wait, the oldest goes first."""
        while self._queue.qsize() >= QUEUE_LIMIT:
            self._queue.get_nowait()
            self._values_dropped += 1
        self._queue.put_nowait((name, value, time.time()))

    async def start(self) -> asyncio.Task[None]:
        """Wait for the grace time, then report in a separate task, which is returned; once, however often called."""
        return await self._start(self.grace_time)

    async def stop(self) -> None:
        """End reporting: enqueued values are still logged, open batches are sent. `start` begins again."""
        self._stop_asked.set()
        if (ticks := self._ticks) is not None:
            await asyncio.to_thread(ticks.sampler.stop)
            ticks.end()
        task = self._reporter_task
        if task is None or task.done():  # then it may belong to a loop that is closed
            # The end of a scenario may have been announced without, or after, any reporting.
            await asyncio.to_thread(self._disconnect)
            return
        await asyncio.wait({task}, timeout=STOP_WITHIN_S)
        task.cancel()  # if it is not done
        await asyncio.wait({task}, timeout=STOP_WITHIN_S)

    async def run_reporter(self) -> None:
        """Report at each tick until `stop`, without the grace time; returns at once if it is running already."""
        if self._reporter_task is None or self._reporter_task.done():
            await (await self._start(0.0))

    async def report_scenario_finished(self) -> bool:
        """Announce that this participant has finished its scenario; True only once that was confirmed.

        It is repeated for up to ``finished_within_s``. The controller confirms with 200; without one, the broker does
        by showing that it holds our last presence. After a confirmation nothing is repeated.
        """
        async with self._finishing:
            given_up = threading.Event()
            try:
                self._is_finished = self._is_finished or await asyncio.to_thread(
                    self._finish, self._participant(), given_up
                )
            finally:
                given_up.set()
            return self._is_finished

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def _start(self, grace_time_s: float) -> asyncio.Task[None]:
        task = self._reporter_task
        if task is None or task.done():
            self._stop_asked, self._begun = asyncio.Event(), (begun := asyncio.Event())
            task = self._reporter_task = asyncio.create_task(self._report(grace_time_s), name="Reporter_run_reporter")
            task.add_done_callback(lambda _: begun.set())
        try:
            await self._begun.wait()
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if task.done() and not task.cancelled():
            task.result()  # raises its error
        return task

    async def _report(self, grace_time_s: float) -> None:
        try:
            ticks = await self._prime(grace_time_s)
            self._begun.set()
            if self._stop_asked.is_set():
                ticks.end()
            else:
                self._connect()
                await asyncio.to_thread(ticks.sampler.start)
            while (tick := await ticks.next()) is not None:
                await self._report_tick(tick)
                await self._follow()
            await self._report_queue()
        finally:
            await asyncio.to_thread(self._close)

    async def _prime(self, grace_time_s: float) -> Ticks:
        """Read everything once, so that the first report has shares of CPU time, and wait for the grace time."""
        streams = self._streams
        if streams is None:  # shares of CPU time need two readings that lie some ticks of the kernel's clock apart
            grace_time_s = max(grace_time_s, 0.1)
            made, self._maker = await asyncio.to_thread(reporter_streams, self._job)
            streams = made
        ticks = self._ticks = Ticks(streams, interval_s=self.period_s, publish=self._publisher.publish)
        await asyncio.to_thread(ticks.prime)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_asked.wait(), grace_time_s)
        return ticks

    def _close(self) -> None:
        if self._ticks is not None:
            self._ticks.sampler.stop()
        if self._maker is not None:
            self._maker.rest()
        self._disconnect()

    async def _follow(self) -> None:
        """Obey a config that changed; one that cannot be used changes nothing."""
        try:
            if self._config_file is not None and self._count % self._reload_every == 0:
                self._from_file = await asyncio.to_thread(read_participant, self._config_file)
            settings = read_settings(self._participant(), self._keywords, generation=self._generation)
        except Exception as error:  # noqa: BLE001  # the program's own mapping: whatever it does, reporting goes on
            self._complaints.log(str(error), f"the reporter's settings stay as they were: {error}")
            return
        # Names and addresses stay those of the start.
        self._settings = msgspec.structs.replace(
            self._settings, report_frequency=settings.report_frequency, report_status=settings.report_status
        )
        if self._ticks is not None and self._ticks.sampler.asked_interval_s != self.period_s:
            self._ticks.sampler.set_interval(self.period_s)

    def _participant(self) -> Mapping[str, Any]:
        """Return the present participant: memory before the file, except for the reporter's own part."""
        given = participant_of(self.config)
        own = {**section(given, "reporter_args"), **section(self._from_file, "reporter_args")}
        return {**self._from_file, **given, "reporter_args": own}

    # --- each tick ---------------------------------------------------------------------------------------------------

    async def _report_tick(self, tick: Tick) -> None:
        """Report once: a status, enqueued values, then the machine; a part that fails is left out."""
        try:
            if self._settings.report_status and self.url:
                self._controller.status(self._status(self._participant(), tick.t))
        except Exception:  # the program's own mapping
            logger.exception("a status could not be made")
        try:
            await self._report_queue()
            await self._report_resources(tick)
            self._publisher.flush()
        except Exception:  # the next cycle comes all the same
            logger.exception("a cycle of the reporter failed")
        self._count += 1

    async def _report_queue(self) -> None:
        """Log the values that are enqueued now, the oldest first."""
        for _ in range(self._queue.qsize()):
            name, value, t = self._queue.get_nowait()
            try:
                if self._user_values is not None:
                    self._user_values.add_scalar(name, value, t=t)
            except InvalidInputError as error:
                self._complaints.log(name, f"a value goes to the sinks alone: {error}")
            await self._log({name: value}, t, time.monotonic() - (time.time() - t))

    async def _report_resources(self, tick: Tick) -> None:
        self._traffic.look(tick.values)
        connections = await self._neighbours()
        found = resources(tick.values, traffic=self._traffic, connections=connections, generation=self._generation)
        for values in (found, *gpus(tick.values)):
            await self._log(values, tick.t, tick.mono)

    async def _log(self, values: Mapping[str, Any], t: float, mono: float) -> None:
        reported = Reported(values, t=t, mono=mono, node_id=self.node_id, seq=self._logged)
        for sink in self._present_sinks():
            await self._calls.call(sink, functools.partial(_write, sink, reported))
        self._logged += 1

    def _present_sinks(self) -> list[object]:
        """Return the trainer's loggers, looked up each time because trainers change theirs, and the other sinks."""
        found = getattr(self.trainer, "logger", None)
        if found is None and hasattr(self.trainer, "log_data"):
            found = self.trainer
        loggers = found if isinstance(found, list | tuple) else [found]
        return [sink for sink in [*loggers, *self._sinks] if sink is not None]

    async def _neighbours(self) -> int | None:
        """Return the number of direct connections; None without a manager, or if it fails."""
        manager: Any = self.cm
        if manager is None:
            return None
        found = await self._calls.call(manager, lambda: manager.get_addrs_current_connections(only_direct=True))
        return len(found) if isinstance(found, Sized) else None

    # --- broker and controller ---------------------------------------------------------------------------------------

    def _made_publisher(self) -> Publisher:
        return Publisher(
            node_id=self.node_id,
            boot=self._boot,
            send=lambda payload: self._link is not None and self._link.send(payload),
            leaves=lambda _name: self._broker is not None,
            interval_s=self.frequency,
        )

    def _connect(self) -> None:
        """Begin to connect; returns at once."""
        if self._broker is not None:
            from fedmon.node.broker_link import BrokerLink  # loads MQTT

            self._link = BrokerLink(
                self._broker,
                node_id=self.node_id,
                boot=self._boot,
                streams=lambda: self._stream_names,
                monitor=self._granted,
                connections=self._connections,
            )
            self._link.start()
        if self.url:
            self._controller.start()

    def _disconnect(self) -> None:
        """Send open batches, and end the connections; waits a moment."""
        self._publisher.flush()
        if self._link is not None:
            self._link.stop(CLOSE_WITHIN_S)
            self._connections, self._link = self._link.connections, None
        self._controller.stop(CLOSE_WITHIN_S)

    def _finish(self, participant: Mapping[str, Any], given_up: threading.Event) -> bool:
        """Announce the end of the scenario until it is confirmed; False if it was not in time."""
        link, scenario, now = self._link, self._settings.scenario, time.time()
        if link is not None:
            values: dict[str, float | None] = {series(FINISHED, scenario=scenario): 1.0}
            self._publisher.publish(USER_STREAM, Sample(t=now, mono=time.monotonic(), values=values))
            self._publisher.flush()
            link.finish(f"scenario {scenario} finished"[:200])
        if self._settings.done_url:
            # The old controller gets the end alone, the later one a last status before.
            status = b"" if self._generation == "old" else self._status(participant, now)
            return self._controller.finish(status, self._finished_within_s, given_up=given_up)
        return link is not None and link.wait_held(self._finished_within_s, given_up=given_up)

    def _status(self, participant: Mapping[str, Any], t: float) -> bytes:
        self._statuses += 1
        stamp = {"node_id": self.node_id, "boot": self._boot, "sequence": self._statuses, "t": round(t, 3)}
        return status_body(participant, stamp)

    def _granted(self, request: Monitor) -> MonitorReply | None:
        """Answer `monitor`; None for a resend."""
        if request.action == "resend":
            return None
        from fedmon.node.collectors.hardware import hardware  # by which a machine of several is counted once

        ticks = self._ticks
        found = {} if ticks is None else ticks.sampler.capabilities()
        return MonitorReply(
            action=request.action,
            interval_s=self.frequency,
            streams=self._stream_names,
            capabilities=found,
            metrics=sorted(name for name, reason in found.items() if reason is None),
            hardware={**hardware()},
            **echo(request, self.node_id),
        )
