"""A link that a test can cut, freeze and heal: a TCP proxy on the loopback address."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from tests.support.stubborn import peer


class Proxy:
    """Passes bytes to a port until it is cut; then every connection ends, new ones at once. A context manager."""

    def __init__(self, port: int) -> None:
        self.port, self._target = 0, port
        self._lock = threading.Lock()
        self._is_cut = self._is_frozen = self._is_refusing = False
        self._ends: set[socket.socket] = set()
        self._listening = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """The URL of a broker behind it."""
        return f"mqtt://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End every connection, without a word of either side, and let no new one live."""
        with self._lock:
            self._is_cut = True
            for end in self._ends:
                hang_up(end)

    def refuse(self) -> None:
        """End every connection and refuse new ones, as a host whose server is down."""
        self._is_refusing = True
        self._listening.close()
        self.cut()

    def heal(self) -> None:
        """Let connections through again; frozen ones stay lost, as behind a firewall that forgot them."""
        if self._is_frozen:
            self.cut()
        if self._is_refusing:
            self._listen()
        with self._lock:
            self._is_cut = self._is_frozen = self._is_refusing = False

    def freeze(self) -> None:
        """Let no byte through, on present and on new connections, without closing them."""
        self._is_frozen = True

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.cut()

    def _listen(self) -> None:
        self.port = self._listening.enter_context(peer(self._serve, port=self.port))

    def _serve(self, near: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target), 5) as far:
            far.settimeout(None)
            with self._lock:
                self._ends |= {near, far}
                if self._is_cut:
                    hang_up(near)
            back = threading.Thread(target=self._pump, args=(far, near), name="proxy-pump")
            back.start()
            self._pump(near, far)
            back.join()
            with self._lock:
                self._ends -= {near, far}

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._is_frozen:
                    sink.sendall(data)
        hang_up(sink)


def hang_up(end: socket.socket) -> None:
    """Shut down both directions of a socket, if it is still connected."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
