"""A controller as NEBULA's: a real HTTP server in a thread, that answers what the test says."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.http_server import Answers, LoopbackServer


class Posted(NamedTuple):
    """One request; ``connection`` is the port from which it came."""

    path: str
    body: dict[str, Any]
    raw: bytes
    headers: dict[str, str]
    connection: int


class HttpController(LoopbackServer):
    """Records each POST and answers ``answer(posted)``, over TLS if given; a context manager. ``port`` 0 takes any."""

    def __init__(
        self,
        answer: Callable[[Posted], int] = lambda _posted: 200,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(_Posts, port=port)
        self.posted: list[Posted] = []
        self.answer = answer
        self.address = f"127.0.0.1:{self.server_port}"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def statuses(self) -> list[Posted]:
        """Return the statuses so far."""
        return [posted for posted in list(self.posted) if posted.path.endswith("/update")]

    def ends(self) -> list[Posted]:
        """Return the ends of scenarios so far."""
        return [posted for posted in list(self.posted) if posted.path.endswith("/done")]


class _Posts(Answers):
    protocol_version = "HTTP/1.1"
    timeout = 10

    def do_POST(self) -> None:  # noqa: N802  # as http.server has it
        raw = self.body()
        posted = Posted(self.path, json.loads(raw), raw, dict(self.headers), self.client_address[1])
        self.server.posted.append(posted)
        self.reply(self.server.answer(posted), b'{"message": "answered"}')
