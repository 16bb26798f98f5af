"""Serve the file repository until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pathlib
import signal
import socket
import ssl
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedmon.broker import ports
from fedmon.broker.errors import BrokerStartError
from fedmon.broker.file_store import FileStore, Limits
from fedmon.broker.repository import Options, application
from fedmon.broker.tokens import Tokens

REQUEST_S = 10.0
_MAX_CONNECTIONS = 600
"""More than nftables.conf allows one address; each has up to 280 KB over TLS."""
_PROGRESS_BYTES = 65_536


def serve(
    *,
    host: str,
    port: int,
    folder: pathlib.Path,
    limits: Limits,
    tokens: Tokens | None,
    public_url: str | None,
    certificate: pathlib.Path | None,
    key: pathlib.Path | None,
    ready: Callable[[str], None],
) -> None:
    """Listen on an address, call ``ready`` with the repository's URL, and serve until SIGTERM or SIGINT.

    Port 0 picks a free one. Raises PortInUseError, BrokerStartError or StorageError.
    """
    store = FileStore(folder, limits)
    with contextlib.closing(ports.listening(host, port)) as listener:
        bound = listener.getsockname()[1]
        scheme = "https" if certificate else "http"
        url = (public_url or f"{scheme}://{ports.in_url(ports.reachable_host(host))}:{bound}").rstrip("/")
        configuration = uvicorn.Config(
            application(store, Options(public_url=url, tokens=tokens)),
            http=_Connection,
            ws="none",
            loop="asyncio",
            # One request a connection: what is left of a refused body is not read.
            headers=[("Connection", "close")],
            ssl_certfile=certificate,
            ssl_keyfile=key,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=3,
        )
        try:
            configuration.load()
        except (OSError, ssl.SSLError) as error:
            raise BrokerStartError(f"cannot use {certificate} and {key}: {error}") from None
        if configuration.ssl is not None:
            configuration.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn stops on these, and then raises them again for whoever was listening before.
            signal.signal(number, lambda _number, _frame: None)
        server = _Server(configuration, lambda: ready(url))
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells when it is ready."""

    def __init__(self, configuration: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(configuration)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.is_ssl:
            # asyncio's default is 60 s, and uvicorn has no option for it.
            loop = asyncio.get_running_loop()
            create = functools.partial(loop.create_server, ssl_handshake_timeout=REQUEST_S)
            loop.create_server = create  # type: ignore[method-assign]  # of this one loop
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()


class _Connection(H11Protocol):
    """A connection that is cut when its request is not complete and brings no 64 KiB in ten seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._fresh_bytes = 0
        self._due = self.loop.time() + REQUEST_S
        self._timer = self.loop.call_at(self._due, self._look)

    def data_received(self, data: bytes) -> None:
        self._fresh_bytes += len(data)
        if self._fresh_bytes >= _PROGRESS_BYTES:
            self._fresh_bytes, self._due = 0, self.loop.time() + REQUEST_S
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        # There is no cycle before the headers are complete, whatever uvicorn's annotation says.
        if self.cycle is not None and not self.cycle.more_body:  # type: ignore[redundant-expr]
            return
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
        else:
            self.transport.abort()
