"""Ports of the loopback address without a listener."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below those that Linux gives to clients, so that no connection takes one before it is listened on."""
_WORKERS = 16
_SHARE = (LAST - FIRST) // _WORKERS
_BEGIN = FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS * _SHARE
_NEXT = itertools.cycle(random.sample(range(_BEGIN, _BEGIN + _SHARE), _SHARE))
"""The ports of one worker: each is given again only after all others, so that no two tests get the same."""


def free_ports(count: int) -> list[int]:
    """Return different TCP ports that were free a moment ago."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            listener, port = held.enter_context(socket.socket()), next(_NEXT)
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    return free_ports(1)[0]
