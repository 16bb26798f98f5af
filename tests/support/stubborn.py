"""Peers on a TCP port that are no broker, or a bad one."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tests.support.http_server import Served


@contextlib.contextmanager
def peer(answer: Callable[[socket.socket], object], *, address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Listen on a port; ``answer`` has each connection for itself, which is closed after it."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                answer(self.request)

    with Served((address, port), Handler) as server:
        yield int(server.server_address[1])


def greeter(greeting: bytes, *, address: str = "127.0.0.1", port: int = 0) -> AbstractContextManager[int]:
    """Listen on a port, send each client the same bytes, and read until it leaves."""

    def greet(client: socket.socket) -> None:
        client.sendall(greeting)
        while client.recv(4096):
            pass

    return peer(greet, address=address, port=port)


@contextlib.contextmanager
def silent_peer() -> Iterator[int]:
    """Listen on a port, accept nothing by hand and never answer; the kernel completes the connections."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def full_peer(*, address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Listen on a port whose queue of connections is full, so that no other one comes about."""
    with socket.create_server((address, port), backlog=0) as listener, contextlib.ExitStack() as waiting:
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def broker_that_gives_connections_away(*, last_packet: bytes = b"\xe0\x01\x8e") -> Iterator[tuple[int, list[float]]]:
    """Let every client of MQTT 5 in and end its connection at once, as a broker does when another takes its id.

    Yields the port, and when each client came. ``last_packet`` is a DISCONNECT with reason code 0x8E by default.
    """
    came: list[float] = []

    def give_away(client: socket.socket) -> None:
        came.append(time.monotonic())
        client.recv(65_536)
        client.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK: welcome
        subscribe = client.recv(65_536)
        header_bytes = 2 if subscribe[1] < 128 else 3
        number = subscribe[header_bytes : header_bytes + 2]
        client.sendall(b"\x90\x04" + number + b"\x00\x00" + last_packet)  # SUBACK: granted
        client.shutdown(socket.SHUT_WR)
        while client.recv(65_536):
            pass

    with peer(give_away) as port:
        yield port, came
