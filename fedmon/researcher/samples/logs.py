"""Log records of nodes, as records of Python logging under ``fedmon.node.<node_id>``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.wire.messages import LogRecord
from fedmon.researcher.session.callbacks import Dispatcher, Subscription

LOGGER_PREFIX = "fedmon.node"
MAX_LOGGERS = 10_000
"""Python keeps a logger for ever, and anybody can invent ids on a broker without users."""


class LogStream(Subscription):
    """One listener to the logs of nodes, until it is removed; also a context manager. Safe from any thread."""

    def __init__(
        self,
        callback: Callable[[LogRecord], object] | None,
        on_removed: Callable[[Subscription], None],
        *,
        nodes: frozenset[NodeId] | None,
        level: str,
    ) -> None:
        super().__init__(callback or _nothing, on_removed)
        self.nodes = nodes
        self.level_number = level_number(level)

    def wants(self, record: LogRecord) -> bool:
        """Tell whether this listener asked for a record."""
        return (
            not self.removed
            and (self.nodes is None or record.node_id in self.nodes)
            and level_number(record.level) >= self.level_number
        )


class Logs:
    """Hands each record that a listener wants to Python logging once, and to the listeners' callbacks.

    `add` and `remove` are safe from any thread; ``on_changed`` is called after them.
    """

    def __init__(self, dispatcher: Dispatcher, *, on_changed: Callable[[], None]) -> None:
        self._dispatcher, self._on_changed = dispatcher, on_changed
        self._lock = threading.Lock()
        self._loggers: dict[str, logging.Logger] = {}
        self._logging = Subscription(self._to_logging, lambda _: None)
        self.streams: tuple[LogStream, ...] = ()

    def add(self, stream: LogStream) -> None:
        """Begin to hand log records to a listener."""
        with self._lock:
            self.streams += (stream,)
        self._on_changed()

    def remove(self, stream: Subscription) -> None:
        """End what `add` began."""
        with self._lock:
            self.streams = tuple(one for one in self.streams if one is not stream)
        self._on_changed()

    def take(self, record: LogRecord) -> None:
        """Hand a record on; called on the thread of the inbox."""
        wanting = [stream for stream in self.streams if stream.wants(record)]
        if wanting:
            self._dispatcher.call(self._logging, (record,), urgent=False, size_bytes=len(record.msg))
            for stream in wanting:
                if stream.callback is not _nothing:
                    self._dispatcher.call(stream, (record,), urgent=False, size_bytes=len(record.msg))

    def _to_logging(self, record: LogRecord) -> None:
        logger = self._loggers.get(record.node_id)
        if logger is None:
            if len(self._loggers) >= MAX_LOGGERS:
                logger = logging.getLogger(LOGGER_PREFIX)
            else:
                logger = self._loggers[record.node_id] = logging.getLogger(f"{LOGGER_PREFIX}.{record.node_id}")
        number = level_number(record.level)
        if logger.isEnabledFor(number):
            text = f"{escape_control(record.logger)}: {escape_control(record.msg)}"
            made = logger.makeRecord(logger.name, number, record.node_id, 0, text, (), None)
            made.created = record.time.timestamp()
            made.msecs = made.created % 1 * 1000
            # What a node sent must not be sent on by a process that is node and researcher at once.
            made.fedmon_remote = True
            made.node_id = record.node_id
            logger.handle(made)


def level_number(level: str) -> int:
    """Return the number of a level of Python logging.

    Raises InvalidInputError naming the levels there are.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidInputError(f"level {level!r} is not one of DEBUG, INFO, WARNING, ERROR, CRITICAL")
    return number


def _nothing(_record: LogRecord) -> None:
    """Stand in for the callback of a listener that only wants Python logging."""
