"""Peers on a TCP port that are no broker, or a bad one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from tests.support.proxy import hang_up


@contextlib.contextmanager
def silent_peer() -> Iterator[int]:
    """Listen on a port, accept nothing by hand and never answer; the kernel completes the connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def broker_that_gives_connections_away(*, last_packet: bytes = b"\xe0\x01\x8e") -> Iterator[tuple[int, list[float]]]:
    """Let every client of MQTT 5 in and end its connection at once, as a broker does when another takes its id.

    Yields the port, and when each client came. ``last_packet`` is a DISCONNECT with reason code 0x8E by default.
    """
    came: list[float] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                came.append(time.monotonic())
                with client, contextlib.suppress(OSError):
                    client.recv(65_536)
                    client.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK: welcome
                    subscribe = client.recv(65_536)
                    header_bytes = 2 if subscribe[1] < 128 else 3
                    number = subscribe[header_bytes : header_bytes + 2]
                    client.sendall(b"\x90\x04" + number + b"\x00\x00" + last_packet)  # SUBACK: granted
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(65_536):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1]), came
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5.0)


@contextlib.contextmanager
def greeter(address: str, port: int, greeting: bytes) -> Iterator[None]:
    """Listen on an address, send each client the same bytes, and read until it leaves."""
    with socket.create_server((address, port)) as listener:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    with near, contextlib.suppress(ConnectionError):  # one that left at once ends no other
                        near.sendall(greeting)
                        while near.recv(4096):
                            pass

        server = threading.Thread(target=greet)
        server.start()
        try:
            yield
        finally:
            hang_up(listener)
            server.join(5)
