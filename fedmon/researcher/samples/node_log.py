"""Log messages of nodes in the words of version 4.4, as records of Python logging under ``fedmon.node.<node_id>``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.ids import ID_PATTERN
from fedmon.common.log import LEVELS, escape_control
from fedmon.researcher.samples.logs import LOGGER_PREFIX


class _Inner(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    name: str = ""


def log_as_node(log: Mapping[str, Any]) -> None:
    """Log what a node told, one record on one line; a ``msg`` that is no JSON text of a record is told as it is."""
    text, node_id, level = str(log.get("msg", "")), str(log.get("node_id", "")), str(log.get("level", "")).upper()
    try:
        inner = msgspec.json.decode(text, type=_Inner)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        inner = _Inner(message=text)
    name = f"{LOGGER_PREFIX}.{node_id}" if ID_PATTERN.fullmatch(node_id) else LOGGER_PREFIX
    told = (
        f"{escape_control(inner.name)}: {escape_control(inner.message)}"
        if inner.name
        else escape_control(inner.message)
    )
    number = logging.getLevelNamesMapping()[level if level in LEVELS else "INFO"]
    # What a node sent must not be sent on by a process that is node and researcher at once.
    marks = {"fedmon_remote": True, "node_id": node_id}
    logging.getLogger(name).log(number, "%s", told, extra=marks)
