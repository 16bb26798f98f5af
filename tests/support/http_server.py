"""Servers of tests, each in a thread, and those that answer HTTP."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Served(socketserver.ThreadingTCPServer):
    """A server that serves until the end of the block."""

    allow_reuse_address = daemon_threads = True
    block_on_close = False

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), name="server")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class LoopbackServer(Served, ThreadingHTTPServer):
    """A server at ``url`` on this machine that serves until the end of the block. ``port`` 0 takes any."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], *, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Answers(BaseHTTPRequestHandler):
    """What answers one request, and says nothing."""

    server: Any

    def body(self) -> bytes:
        """Return what was sent."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def reply(self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Answer the request."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
