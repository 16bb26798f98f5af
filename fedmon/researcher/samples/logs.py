"""Log records of nodes, as records of Python logging under ``fedmon.node.<node_id>``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import ID_PATTERN, NodeId
from fedmon.common.log import LEVELS, escape_control
from fedmon.common.wire.messages import LogRecord
from fedmon.researcher.session.callbacks import Dispatcher, Subscription

LOGGER_PREFIX = "fedmon.node"
MAX_LOGGERS = 10_000
"""Python keeps a logger forever, and on a broker without users ids can be invented."""


class LogStream(Subscription):
    """One listener to the logs of nodes, until it is removed; also a context manager. Safe from any thread."""

    def __init__(
        self,
        callback: Callable[[LogRecord], object] | None,
        on_removed: Callable[[LogStream], None],
        *,
        nodes: frozenset[NodeId] | None,
        level: str,
    ) -> None:
        super().__init__(callback or _nothing, on_removed)
        self.nodes = nodes
        self._level = level_number(level)

    def wants(self, record: LogRecord) -> bool:
        """Tell whether this listener asked for a record."""
        return (
            not self.removed
            and (self.nodes is None or record.node_id in self.nodes)
            and level_number(record.level) >= self._level
        )


class Logs:
    """Hands each record that a listener wants to Python logging once, and to the listeners' callbacks.

    `add` and `remove` are safe from any thread; ``on_changed`` is called after them.
    """

    def __init__(self, dispatcher: Dispatcher, *, on_changed: Callable[[], None]) -> None:
        self._dispatcher, self._on_changed = dispatcher, on_changed
        self._loggers: dict[str, logging.Logger] = {}
        self._logging = Subscription(self._log, lambda _: None)
        self.streams: list[LogStream] = []

    def add(self, stream: LogStream) -> None:
        """Begin to hand log records to a listener."""
        self.streams.append(stream)
        self._on_changed()

    def remove(self, stream: LogStream) -> None:
        """Undo `add`."""
        self.streams.remove(stream)
        self._on_changed()

    def take(self, record: LogRecord) -> None:
        """Hand a record on; called on the inbox thread."""
        wanting = [stream for stream in list(self.streams) if stream.wants(record)]
        with_callback = [stream for stream in wanting if stream.callback is not _nothing]
        for subscription in (self._logging, *with_callback) if wanting else ():
            self._dispatcher.call(subscription, (record,), urgent=False, size_bytes=len(record.msg))

    def _log(self, record: LogRecord) -> None:
        logger = self._loggers.get(record.node_id)
        if logger is None:
            if len(self._loggers) >= MAX_LOGGERS:
                logger = logging.getLogger(LOGGER_PREFIX)
            else:
                logger = self._loggers[record.node_id] = logging.getLogger(f"{LOGGER_PREFIX}.{record.node_id}")
        number = level_number(record.level)
        if logger.isEnabledFor(number):
            text = _text(record.logger, record.msg)
            made = logger.makeRecord(
                logger.name, number, record.node_id, 0, text, (), None, extra=_marks(record.node_id)
            )
            made.created = record.time.timestamp()
            made.msecs = made.created % 1 * 1000
            logger.handle(made)


class _HistoricRecord(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    name: str = ""


def log_as_node(log: Mapping[str, Any]) -> None:
    """Log a message of version 4.4 as one record on one line; a ``msg`` that is no JSON record is logged as it is."""
    text, node_id, level = str(log.get("msg", "")), str(log.get("node_id", "")), str(log.get("level", "")).upper()
    try:
        record = msgspec.json.decode(text, type=_HistoricRecord)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        record = _HistoricRecord(message=text)
    logger = logging.getLogger(f"{LOGGER_PREFIX}.{node_id}" if ID_PATTERN.fullmatch(node_id) else LOGGER_PREFIX)
    number = level_number(level if level in LEVELS else "INFO")
    logger.log(number, "%s", _text(record.name, record.message), extra=_marks(node_id))


def level_number(level: str) -> int:
    """Return the number of a level of Python logging.

    Raises InvalidInputError naming the levels there are.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidInputError(f"level {level!r} is not one of {', '.join(LEVELS)}")
    return number


def _text(name: str, message: str) -> str:
    return f"{escape_control(name)}: {escape_control(message)}" if name else escape_control(message)


def _marks(node_id: str) -> dict[str, object]:
    # A process that is node and researcher at once must not send records of a node on.
    return {"fedmon_remote": True, "node_id": node_id}


def _nothing(_record: LogRecord) -> None:
    """Stand in for the callback of a listener that only wants Python logging."""
