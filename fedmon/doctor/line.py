"""A connection of the doctor's own, on which it sends messages to itself and waits for them."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from fedmon.common.clock import Deadline
from fedmon.common.settings import BrokerSettings
from fedmon.common.wire.connection import BrokerConnection, Will


class Line:
    """One client that listens to ``topic`` and may write it; a context manager.

    Raises ConnectionFailedError on entering.
    """

    def __init__(
        self, broker: BrokerSettings, *, client_id: str, topic: str, timeout_s: float, will: bytes | None = None
    ) -> None:
        self._topic, self._timeout_s = topic, timeout_s
        self._arrived = threading.Condition()
        self._messages: list[tuple[bytes, bool, float]] = []
        self.transport = BrokerConnection(
            broker,
            client_id=client_id,
            subscriptions=[(topic, 1)],
            on_message=self._on_message,
            quiet_until_up=True,
            will=lambda: None if will is None else Will(topic=topic, payload=will, retain=False),
        )

    def __enter__(self) -> Self:
        self.transport.start()
        try:
            self.transport.wait_connected(self._timeout_s)
        except BaseException:
            self.transport.stop(1.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transport.stop(1.0)

    def send(self, payload: bytes, *, qos: int = 0, retain: bool = False) -> float | None:
        """Send to ourselves; return the seconds of the round trip, or null when it did not come back in time."""
        started = time.monotonic()
        self.transport.publish(self._topic, payload, qos=qos, retain=retain)
        if not payload:
            return None
        seen = self.wait(payload)
        return None if seen is None else seen[1] - started

    def wait(self, payload: bytes) -> tuple[bool, float] | None:
        """Wait for a payload; return whether it was retained and when it came, or null when it did not."""
        deadline = Deadline(self._timeout_s)

        def found() -> tuple[bool, float] | None:
            return next(((retained, when) for text, retained, when in self._messages if text == payload), None)

        with self._arrived:
            self._arrived.wait_for(lambda: found() is not None, timeout=deadline.left_s())
            return found()

    def _on_message(self, _topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001
        with self._arrived:
            self._messages.append((payload, retained, time.monotonic()))
            del self._messages[:-100]
            self._arrived.notify_all()
