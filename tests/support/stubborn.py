"""Peers on a TCP port that are no broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def silent_peer() -> Iterator[int]:
    """Listen on a port, accept nothing by hand and never answer; the kernel completes the connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield int(listener.getsockname()[1])


class FrozenLine:
    """A relay to a port of this machine that can hold every byte back without closing anything."""

    def __init__(self, target: int, listener: socket.socket) -> None:
        self._target, self._listener = target, listener
        self._flowing = threading.Event()
        self._flowing.set()
        self._ends: list[socket.socket] = []
        self.port = int(listener.getsockname()[1])

    def freeze(self) -> None:
        """Let nothing through from now on, neither on connections there are nor on new ones."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let new connections through; what was frozen stays lost, as behind a firewall that forgot it."""
        for end in self._ends:
            _shut(end)
        self._flowing.set()

    def serve(self) -> None:
        """Accept until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def close(self) -> None:
        """Close every connection."""
        for end in self._ends:
            _shut(end)
            end.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                if self._flowing.is_set():
                    target.sendall(content)
            _shut(target)


@contextlib.contextmanager
def frozen_line(port: int) -> Iterator[FrozenLine]:
    """Run a relay to a port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = FrozenLine(port, listener)
        server = threading.Thread(target=line.serve)
        server.start()
        try:
            yield line
        finally:
            _shut(listener)
            line.close()
            server.join(5)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
