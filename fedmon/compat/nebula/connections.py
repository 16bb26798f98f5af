"""How many neighbours a participant has, as its connection manager says."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

TIMEOUT_S = 1.0
_ASK = "get_addrs_current_connections"


async def count_connections(manager: object, *, timeout_s: float = TIMEOUT_S) -> int | None:
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
