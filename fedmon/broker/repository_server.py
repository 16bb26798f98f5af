"""Serve the file repository until it is told to stop."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import socket
import ssl
from collections.abc import Callable

import uvicorn

from fedmon.broker import ports
from fedmon.broker.errors import BrokerStartError
from fedmon.broker.file_store import FileStore, Limits
from fedmon.broker.repository import Options, application

_MAX_CONNECTIONS = 200


def serve(
    *,
    host: str,
    port: int,
    folder: pathlib.Path,
    limits: Limits,
    token: str | None,
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
            application(store, Options(public_url=url, token=token)),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=5,
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
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()
