"""One report: the status, then what the program enqueued, then what the machine does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedmon.compat.nebula.connections import count_connections
from fedmon.compat.nebula.measured import Tick
from fedmon.compat.nebula.outlets import Outlets
from fedmon.compat.nebula.settings import Generation
from fedmon.compat.nebula.sinks import Sinks
from fedmon.compat.nebula.traffic import Traffic
from fedmon.compat.nebula.view import Processes, Reported, gpus, resources

logger = logging.getLogger(__name__)

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
