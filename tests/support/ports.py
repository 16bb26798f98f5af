"""Ports of the loopback address that nobody listens on."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
