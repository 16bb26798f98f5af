"""A link that a test can cut, freeze and heal: a TCP proxy on the loopback address."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Passes bytes to a port until it is cut; then every connection ends, new ones at once. A context manager."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._is_cut = self._is_frozen = False
        self._refused = 0
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, name="proxy")]

    @property
    def port(self) -> int:
        """The port to connect to."""
        return int(self._listener.getsockname()[1])

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
        self._refused = self.port
        hang_up(self._listener)
        self._listener.close()
        self.cut()

    def heal(self) -> None:
        """Let connections through again; frozen ones stay lost, as behind a firewall that forgot them."""
        if self._is_frozen:
            self.cut()
        if self._refused:
            self._listener, self._refused = socket.create_server(("127.0.0.1", self._refused)), 0
            self._threads.append(threading.Thread(target=self._accept, name="proxy"))
            self._threads[-1].start()
        with self._lock:
            self._is_cut = self._is_frozen = False

    def freeze(self) -> None:
        """Let no byte through, on present and on new connections, without closing them."""
        self._is_frozen = True

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        hang_up(self._listener)
        self.cut()
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._ends |= {near, far}
                if self._is_cut:
                    hang_up(near)
            for source, sink in ((near, far), (far, near)):
                pump = threading.Thread(target=self._pump, args=(source, sink), name="proxy-pump")
                self._threads.append(pump)
                pump.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._is_frozen:
                    sink.sendall(data)
        hang_up(sink)
        with self._lock:
            self._ends.discard(source)
        source.close()


def hang_up(end: socket.socket) -> None:
    """Shut down both directions of a socket, if it is still connected."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
