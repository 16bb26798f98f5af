"""The file repository: an ASGI application that stores files by digest for plans too large for a message.

| request | answer |
|---|---|
| ``POST /files``, body = the file, bearer token of a party | 201, JSON ``url, sha256, size_bytes, expires`` |
| ``POST /upload/``, multipart field ``file``, bearer token | 201, JSON ``url, file, created_at`` (the historic form) |
| ``GET`` or ``HEAD /files/<sha256>`` | the file, with ``ETag`` and ranges; 404 when unknown or expired |
| ``GET /health`` | 200, JSON ``status, files, bytes`` |
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import logging
import pathlib
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import uvicorn
from python_multipart.exceptions import FormParserError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedmon.broker import ports
from fedmon.broker.file_store import FileStore, StoredFile, StoreLimits, Upload, UploadRefusedError, too_large
from fedmon.broker.ports import BrokerStartError
from fedmon.broker.users import Tokens
from fedmon.common.errors import StorageError

logger = logging.getLogger(__name__)

REQUEST_S = 10.0
UPLOAD_S = 600.0
"""As long as a node tries; one second more for each MiB that a file may have."""
SWEEP_S = 600.0
HISTORIC_PATH = "/upload/"
FIELD = "file"
_MAX_CONNECTIONS = 600
"""More than nftables.conf allows one address; each has up to 350 KB over TLS."""
_PROGRESS_BYTES = 65_536
# The headers and borders of a multipart body may add so much to the file itself.
_MULTIPART_EXTRA_BYTES = 16_384


# --- the application --------------------------------------------------------------------------------------------------


class _Endpoints:
    def __init__(self, store: FileStore, public_url: str, tokens: Tokens | None) -> None:
        self._store, self._public_url, self._tokens = store, public_url, tokens
        self._upload_s = UPLOAD_S + store.limits.max_file_bytes / 2**20

    @contextlib.asynccontextmanager
    async def lifespan(self, _application: Starlette) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(self._sweep())
        yield
        sweeper.cancel()

    async def health(self, _request: Request) -> Response:
        files, size_bytes = self._store.usage()
        return JSONResponse({"status": "ok", "files": files, "bytes": size_bytes})

    async def download(self, request: Request) -> Response:
        file = await run_in_threadpool(self._store.find, request.path_params["sha256"])
        if file is None:
            return _refusal(404, "no file of this digest is here; it may have expired")
        return FileResponse(
            self._store.files / file.sha256,
            media_type="application/octet-stream",
            headers={"ETag": f'"{file.sha256}"', "X-Content-Type-Options": "nosniff"},
            content_disposition_type="attachment",
            filename=file.sha256,
        )

    async def upload(self, request: Request) -> Response:
        is_form = request.url.path == HISTORIC_PATH
        try:
            party = await run_in_threadpool(self._party, request)
            if request.headers.get("content-encoding", "identity") != "identity":
                return _refusal(415, "send the file as it is, without Content-Encoding")
            stored = await self._stored(request, party, is_form=is_form)
        except UploadRefusedError as error:
            return _refusal(error.status, str(error))
        except TimeoutError:
            return _refusal(408, f"the upload took longer than {self._upload_s:.0f} s")
        except (StorageError, OSError) as error:
            return _refusal(507, str(error))
        except ClientDisconnect:
            return _refusal(400, "the client went away")
        logger.info("stored file %s of %d bytes for %s", stored.sha256, stored.size_bytes, party or "everyone")
        url = f"{self._public_url}/files/{stored.sha256}"
        if is_form:
            answer: dict[str, object] = {"file": url, "created_at": _moment(stored.stored)}
        else:
            answer = {"sha256": stored.sha256, "size_bytes": stored.size_bytes, "expires": _moment(stored.expires)}
        return JSONResponse({"url": url, **answer}, status_code=201)

    async def _stored(self, request: Request, party: str | None, *, is_form: bool) -> StoredFile:
        max_bytes = self._store.limits.max_file_bytes
        max_body_bytes = max_bytes + (_MULTIPART_EXTRA_BYTES if is_form else 0)
        if (length := request.headers.get("content-length", "0")).isdigit() and int(length) > max_body_bytes:
            raise too_large(max_bytes)
        with Upload(self._store, party) as upload:
            if is_form:
                with self._store.room(party, max_body_bytes) as take:
                    file = await _form_file(request, _body(request, self._upload_s, take))
                with contextlib.closing(file.file):
                    while chunk := await file.read(_PROGRESS_BYTES):
                        await run_in_threadpool(upload.write, chunk)
            else:
                async for chunk in _body(request, self._upload_s):
                    await run_in_threadpool(upload.write, chunk)
            return await run_in_threadpool(upload.finish)

    def _party(self, request: Request) -> str | None:
        """Return the uploading party; None if all share one quota. Raises UploadRefusedError or StorageError."""
        if self._tokens is None:
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return self._tokens.party_of(given.strip() if scheme.lower() == "bearer" else "")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await run_in_threadpool(self._store.sweep)
            except OSError as error:
                logger.warning("expired files cannot be deleted: %s", error)


async def _body(
    request: Request, left_s: float, take: Callable[[int], None] = lambda _size: None
) -> AsyncGenerator[bytes, None]:
    """Yield the body as it streams in, and tell ``take`` each size.

    Raises TimeoutError after ``left_s`` of waiting for the client.
    """
    chunks, clock = request.stream(), asyncio.get_running_loop().time
    while True:
        # Only the wait for the client counts, and ends: a thread that writes cannot be cancelled.
        since = clock()
        async with asyncio.timeout(left_s):
            if (chunk := await anext(chunks, None)) is None:
                return
        left_s -= clock() - since
        take(len(chunk))
        yield chunk


async def _form_file(request: Request, body: AsyncGenerator[bytes, None]) -> UploadFile:
    """Return the file in the field ``file`` of a multipart body; its name is ignored. Raises UploadRefusedError."""
    parser = MultiPartParser(request.headers, body, max_files=1, max_fields=10)
    parser.spool_max_size = _PROGRESS_BYTES
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError, LookupError) as error:
        raise UploadRefusedError(f"send multipart/form-data with one file: {error}", status=400) from None
    file = form.get(FIELD)
    if not isinstance(file, UploadFile):
        raise UploadRefusedError(f"the multipart body holds no complete file in the field {FIELD!r}", status=400)
    return file


def _refusal(status: int, reason: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


def _moment(timestamp: float) -> str:
    return dt.datetime.fromtimestamp(timestamp, dt.UTC).isoformat()


# --- the server -------------------------------------------------------------------------------------------------------


def serve(
    *,
    host: str,
    port: int,
    folder: pathlib.Path,
    limits: StoreLimits,
    tokens: Tokens | None,
    public_url: str | None,
    certificate: pathlib.Path | None,
    key: pathlib.Path | None,
    ready: Callable[[str], None],
) -> None:
    """Listen on an address, call ``ready`` with the repository's URL, and serve until SIGTERM or SIGINT.

    Port 0 picks a free one. Without tokens all who can reach the repository may upload. Raises PortInUseError,
    BrokerStartError or StorageError.
    """
    with contextlib.closing(ports.listening(host, port)) as listener:
        if sys.platform == "linux":  # connections inherit it: they end when the client takes nothing for so long
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(REQUEST_S * 1000))
        store = FileStore(folder, limits)
        # Forms are spooled there, as the containers of compose.yaml have no other folder to write to.
        tempfile.tempdir = str(store.incoming)
        scheme = "https" if certificate else "http"
        url = (public_url or f"{scheme}://{ports.url_host(host)}:{listener.getsockname()[1]}").rstrip("/")
        endpoints = _Endpoints(store, url, tokens)
        application = Starlette(
            routes=[
                Route("/files", endpoints.upload, methods=["POST"]),
                Route(HISTORIC_PATH, endpoints.upload, methods=["POST"]),
                Route("/files/{sha256}", endpoints.download, methods=["GET", "HEAD"]),
                Route("/health", endpoints.health, methods=["GET"]),
            ],
            lifespan=endpoints.lifespan,
        )
        configuration = uvicorn.Config(
            application,
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
        _Server(configuration, lambda: ready(url)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Calls ``ready`` when it serves."""

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
        if not self.should_exit:  # a signal may have come meanwhile
            self._ready()


class _Connection(H11Protocol):
    """A connection that is cut when its incomplete request brings less than 64 KiB in ten seconds."""

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
        if self.flow.read_paused:  # the client is not slow, though the disk may be
            self._due = self.loop.time() + REQUEST_S
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
        else:
            self.transport.abort()
