"""Where a reporter logs to: a trainer's logger, or whatever else has `log_data`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fedmon.compat.nebula.view import Reported

logger = logging.getLogger(__name__)

SINK_TIMEOUT_S = 5.0
LEFT_ALONE_S = 30.0
"""How long a sink that hung is not called: it would hold up every report."""


class Sinks:
    """Hands values to each sink in turn; one that fails, hangs or cannot log is counted and never stops the others.

    A sink has ``log_data(values)``, plain or async, and may take ``t`` beside them; a logger that has only
    ``log_metrics(values, step)`` (the stock CSV logger) gets the number of the sample as its step. A trainer's
    ``logger`` is looked up each time, because trainers change theirs.
    """

    def __init__(
        self, trainer: Callable[[], object], sinks: Sequence[object], *, timeout_s: float = SINK_TIMEOUT_S
    ) -> None:
        self._trainer, self._sinks, self._timeout_s = trainer, sinks, timeout_s
        self._said: set[str] = set()
        self._left_alone: dict[int, float] = {}
        self.logged = self.failures = 0

    async def log(self, values: Reported) -> None:
        """Hand values to every sink, and wait for those that are async, each at most ``timeout_s``."""
        for sink in self._present():
            if time.monotonic() < self._left_alone.get(id(sink), 0.0):
                self.failures += 1
                continue
            write = self._writer(sink)
            if write is None:
                self._say_once(f"{_name(sink)} has neither log_data nor log_metrics: it is left out", sink)
                continue
            try:
                done = write(values)
                if inspect.isawaitable(done) and not await self._finish(done):
                    self._left_alone[id(sink)] = time.monotonic() + LEFT_ALONE_S
                    raise TimeoutError(f"it took more than {self._timeout_s:g} s")
            except Exception as error:  # a user's callback: whatever it is, the reporter goes on
                self.failures += 1
                self._say_once(f"{_name(sink)} failed: {type(error).__name__}: {error}", sink)
                logger.debug("a sink failed", exc_info=True)
            else:
                self.logged += 1

    async def _finish(self, pending: Awaitable[object]) -> bool:
        """Wait for an async sink; False when it takes too long. Raises what it raised."""
        task = asyncio.ensure_future(pending)
        try:
            # A sink that cancels itself must not look as if the reporter had been cancelled.
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            if not task.done():
                task.cancel()
        if not done:
            return False
        if task.cancelled():
            raise RuntimeError("it cancelled itself")
        task.result()
        return True

    def _present(self) -> list[object]:
        trainer = self._trainer()
        found = getattr(trainer, "logger", None)
        if found is None and hasattr(trainer, "log_data"):
            found = trainer
        loggers = found if isinstance(found, list | tuple) else [found]
        return [sink for sink in [*loggers, *self._sinks] if sink is not None]

    def _writer(self, sink: object) -> Callable[[Reported], Any] | None:
        log_data = getattr(sink, "log_data", None)
        if callable(log_data):
            return (lambda values: log_data(values, t=values.t)) if _takes_time(log_data) else log_data
        log_metrics = getattr(sink, "log_metrics", None)
        if callable(log_metrics):
            return lambda values: log_metrics(values, step=values.seq)
        return None

    def _say_once(self, text: str, sink: object) -> None:
        key = f"{id(sink)} {text[:80]}"
        logger.log(logging.DEBUG if key in self._said else logging.WARNING, "sink: %s", text)
        if len(self._said) < 100:
            self._said.add(key)


def _takes_time(function: Callable[..., object]) -> bool:
    try:
        return "t" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _name(sink: object) -> str:
    return type(sink).__name__
