"""Ports of the loopback address that nobody listens on."""

from __future__ import annotations

import contextlib
import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below those that Linux gives to clients, so that no connection takes one before it is listened on."""


def free_ports(count: int) -> list[int]:
    """Return different TCP ports that were free a moment ago."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", random.randrange(FIRST, LAST)))
                ports.append(int(listener.getsockname()[1]))
    return ports


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    return free_ports(1)[0]
