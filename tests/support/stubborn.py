"""Peers on a TCP port that are no broker."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def silent_peer() -> Iterator[int]:
    """Listen on a port, accept nothing by hand and never answer; the kernel completes the connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield int(listener.getsockname()[1])
