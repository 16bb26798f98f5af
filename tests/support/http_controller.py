"""A controller as NEBULA's: a real HTTP server in a thread, that answers what the test says."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Self


class Posted(NamedTuple):
    """One request; ``connection`` is the port from which it came."""

    path: str
    body: dict[str, Any]
    raw: bytes
    headers: dict[str, str]
    connection: int


class HttpController:
    """Records each POST and answers ``answer(posted)``, over TLS if given; a context manager. ``port`` 0 takes any."""

    def __init__(
        self,
        answer: Callable[[Posted], int] = lambda _posted: 200,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.posted: list[Posted] = []
        controller = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                posted = Posted(self.path, json.loads(raw), raw, dict(self.headers), self.client_address[1])
                controller.posted.append(posted)
                body = b'{"message": "answered"}'
                self.send_response(answer(posted))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", port), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="http-controller"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def statuses(self) -> list[Posted]:
        """Return the statuses so far."""
        return [posted for posted in list(self.posted) if posted.path.endswith("/update")]

    def ends(self) -> list[Posted]:
        """Return the ends of scenarios so far."""
        return [posted for posted in list(self.posted) if posted.path.endswith("/done")]
