"""Where a reporter tells what it has beside its sinks: a broker, a controller, both or none."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.sample import USER_STREAM, Sample
from fedmon.common.metrics.series import series
from fedmon.common.settings import BrokerSettings, broker_from_url
from fedmon.common.wire.messages import Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.compat.nebula.controller import Controller, ControllerCounts
from fedmon.compat.nebula.settings import ReporterSettings, section
from fedmon.node.measure.publisher import HOST_STREAM, Publisher
from fedmon.node.measure.user_values import UserValues
from fedmon.node.requests.dialect import echo

if TYPE_CHECKING:
    from fedmon.node.broker_link import BrokerLink

logger = logging.getLogger(__name__)


SENT: Mapping[str, tuple[str, ...]] = {
    "device_args": ("uid", "idx", "name", "role", "malicious"),
    "network_args": ("ip", "port", "neighbors"),
    "scenario_args": ("name", "federation", "rounds", "n_nodes"),
    "federation_args": ("round",),
    "tracking_args": ("run_hash",),
}
"""The keys that leave, by group: those that a controller shows or keeps."""

ABSENT: Mapping[str, tuple[str, ...]] = {"mobility_args": ("latitude", "longitude", "neighbors_distance")}
"""Keys that a controller cannot do without, and that are always null: where a machine stands is nobody's business."""

MAX_TEXT = 256
MAX_ENTRIES = 1024


def status_body(participant: Mapping[str, Any], stamp: Mapping[str, Any]) -> bytes:
    """Return one status as JSON: the keys above, null where the participant has none, and ``stamp`` under "fedmon".

    What JSON cannot carry, and text that is too long for what these keys hold, becomes null.
    """
    body: dict[str, dict[str, Any]] = {
        group: {name: _plain(section(participant, group).get(name)) for name in names} for group, names in SENT.items()
    }
    body.update({group: dict.fromkeys(names) for group, names in ABSENT.items()})
    body["fedmon"] = dict(stamp)
    return json.dumps(body, allow_nan=False).encode()


def _plain(value: object) -> Any:
    """Return a value that JSON can carry as it is: a scalar, or a list of scalars."""
    if isinstance(value, list | tuple | set | frozenset):
        entries = [entry for entry in map(_scalar, value) if entry is not None]
        return (sorted(entries, key=str) if isinstance(value, set | frozenset) else entries)[:MAX_ENTRIES]
    return _scalar(value)


def _scalar(value: object) -> str | int | float | bool | None:
    if isinstance(value, str):
        # Neighbours are one text of addresses.
        return value if len(value) <= MAX_TEXT * 32 else None
    if isinstance(value, bool | int):
        return value if abs(value) < 2**63 else None
    if isinstance(value, float) and math.isfinite(value):
        return value
    return None


Capabilities = Callable[[], Mapping[str, str | None]]
REFUSAL = "this is a reporter: it tells what it measures, and keeps nothing to send again"


def granted(
    request: Monitor, *, node_id: str, interval_s: float, streams: list[str], capabilities: Capabilities
) -> MonitorReply | None:
    """Return what is measured and how often; None for samples that are asked for again. For ``BrokerLink``."""
    if request.action == "resend":
        return None
    found = dict(capabilities())
    return MonitorReply(
        action=request.action,
        interval_s=interval_s,
        streams=streams,
        capabilities=found,
        metrics=sorted(name for name, reason in found.items() if reason is None),
        **echo(request, node_id),
    )


FINISHED = "user_scenario_finished"
CLOSE_WITHIN_S = 1.0


class Outlets:
    """Broker and controller of one reporter; nothing here waits but `finish` and `close`.

    ``boot`` numbers this run in samples and statuses. `open` and `close` come in turns, from any thread.
    """

    def __init__(
        self,
        settings: ReporterSettings,
        *,
        broker: str | BrokerSettings | None,
        boot: int,
        streams: list[str],
        capabilities: Capabilities,
        http_timeout_s: float,
        backlog: int,
        seed: int | None,
    ) -> None:
        self._settings, self._boot, self._streams = settings, boot, streams
        self._broker = broker_from_url(broker) if isinstance(broker, str) else broker
        self._connections, self._capabilities = 0, capabilities
        self._link: BrokerLink | None = None
        self._statuses = 0
        self._publisher: Publisher | None = None
        self.user_values: UserValues | None = None
        self._said: set[str] = set()
        if broker is not None:
            self._publisher = Publisher(
                node_id=settings.node_id,
                boot=boot,
                send=self._send,
                leaves=lambda _name: True,
                interval_s=settings.report_frequency,
            )
            self.user_values = UserValues(self._publisher.publish)
        self._controller: Controller | None = None
        if settings.controller is not None:
            self._controller = Controller(
                status_url=settings.status_url,
                done_url=settings.done_url,
                user_agent=f"NEBULA Participant {settings.idx}",
                timeout_s=http_timeout_s,
                backlog=backlog,
                seed=seed,
            )

    def open(self) -> None:
        """Begin to connect; returns at once."""
        if self._broker is not None:
            from fedmon.node.broker_link import BrokerLink

            settings, streams = self._settings, [HOST_STREAM, *self._streams, USER_STREAM]
            self._link = BrokerLink(
                self._broker,
                node_id=settings.node_id,
                boot=self._boot,
                streams=lambda: streams,
                monitor=functools.partial(
                    granted,
                    node_id=settings.node_id,
                    interval_s=settings.report_frequency,
                    streams=streams,
                    capabilities=self._capabilities,
                ),
                refusal=REFUSAL,
                connections=self._connections,
            )
            self._link.start()
        if self._controller is not None:
            self._controller.start()

    def close(self, timeout_s: float = CLOSE_WITHIN_S) -> None:
        """Send what was gathered, and end the connections."""
        if self._publisher is not None:
            self._publisher.flush()
        if self._link is not None:
            self._link.stop(timeout_s)
            self._connections = self._link.connections
            self._link = None
        if self._controller is not None:
            self._controller.stop(timeout_s)

    # --- what is told ------------------------------------------------------------------------------------------------

    def publish(self, stream: str, sample: Sample) -> None:
        """Take a sample of a stream; for the sampler."""
        if self._publisher is not None:
            self._publisher.publish(stream, sample)

    def value(self, name: str, value: Any, t: float) -> None:
        """Put one value of the program beside what is measured; what is no number goes to the sinks alone."""
        if self.user_values is None:
            return
        try:
            self.user_values.add_scalar(name, value, t=t)
        except InvalidInputError as error:
            level = logging.DEBUG if name in self._said else logging.WARNING
            logger.log(level, "a value goes to the sinks alone: %s", error)
            if len(self._said) < 100:
                self._said.add(name)

    def status(self, participant: Mapping[str, Any], t: float) -> None:
        """Queue the participant's status for the controller."""
        if self._controller is not None:
            self._controller.status(self._status_body(participant, t))

    def cycle_done(self) -> None:
        """Send what this cycle gathered."""
        if self._publisher is not None:
            self._publisher.flush()

    async def finish(self, participant: Mapping[str, Any], timeout_s: float) -> bool:
        """Tell that the scenario is over until somebody confirms it; False when nobody did in time.

        A controller confirms with 200; without one the broker does, by showing us that it holds our last presence.
        """
        held = asyncio.create_task(self._tell_broker(self._link, timeout_s)) if self._link is not None else None
        try:
            if self._controller is not None:
                return await self._tell_controller(self._controller, participant, timeout_s)
            return held is not None and await held
        finally:
            if held is not None and not held.done():
                held.cancel()
                await asyncio.wait({held})

    def counts(self) -> ControllerCounts:
        """Return what became of the statuses; all 0 without a controller."""
        return ControllerCounts(0, 0, 0, 0, 0, 0) if self._controller is None else self._controller.counts()

    async def _tell_controller(self, controller: Controller, participant: Mapping[str, Any], timeout_s: float) -> bool:
        # The old controller is told the end alone, the later one hears a last status before.
        status = b"" if self._settings.generation == "old" else self._status_body(participant, time.time())
        controller.start()
        confirmed = controller.finished(status, json.dumps({"idx": self._settings.idx}).encode())
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.wrap_future(confirmed), timeout_s)
        return False

    async def _tell_broker(self, link: BrokerLink, timeout_s: float) -> bool:
        scenario = self._settings.scenario
        sample = Sample(t=time.time(), mono=time.monotonic(), values={series(FINISHED, scenario=scenario): 1.0})
        self.publish(USER_STREAM, sample)
        if self._publisher is not None:
            self._publisher.flush(USER_STREAM)
        link.finish(f"scenario {scenario} finished"[:200])
        given_up = threading.Event()
        try:
            return await asyncio.to_thread(link.wait_held, timeout_s, given_up=given_up)
        finally:
            given_up.set()

    def _status_body(self, participant: Mapping[str, Any], t: float) -> bytes:
        self._statuses += 1
        stamp = {"node_id": self._settings.node_id, "boot": self._boot, "sequence": self._statuses, "t": round(t, 3)}
        return status_body(participant, stamp)

    def _send(self, payload: bytes) -> bool:
        link = self._link
        return link is not None and link.send(payload)
