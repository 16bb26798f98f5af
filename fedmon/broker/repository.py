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
import logging
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from fedmon.broker.errors import (
    BadUploadError,
    BrokerError,
    FileTooLargeError,
    QuotaExceededError,
    UnknownTokenError,
)
from fedmon.broker.file_store import FileStore, StoredFile, Upload
from fedmon.broker.multipart import FileField
from fedmon.broker.tokens import Tokens
from fedmon.common.errors import StorageError

logger = logging.getLogger(__name__)

UPLOAD_S = 60.0
SWEEP_S = 600.0
# What the headers and borders of a multipart body may add to the file itself.
_MULTIPART_EXTRA_BYTES = 16_384

_STATUS: dict[type[Exception], int] = {
    BadUploadError: 400,
    UnknownTokenError: 401,
    FileTooLargeError: 413,
    QuotaExceededError: 507,
    StorageError: 507,
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Where others reach the repository, without a slash at the end, and the tokens that uploads need.

    Without tokens everybody who can reach the repository may upload.
    """

    public_url: str
    tokens: Tokens | None


def application(store: FileStore, options: Options) -> Starlette:
    """Make the application that serves a store."""
    endpoints = _Endpoints(store, options)
    return Starlette(
        routes=[
            Route("/files", endpoints.upload, methods=["POST"]),
            Route("/upload/", endpoints.upload_historic, methods=["POST"]),
            Route("/files/{sha256}", endpoints.download, methods=["GET", "HEAD"]),
            Route("/health", endpoints.health, methods=["GET"]),
        ],
        lifespan=endpoints.lifespan,
    )


class _Endpoints:
    def __init__(self, store: FileStore, options: Options) -> None:
        self._store, self._options = store, options

    @contextlib.asynccontextmanager
    async def lifespan(self, _application: Starlette) -> AsyncIterator[None]:
        stopping = asyncio.Event()
        sweeper = asyncio.create_task(self._sweep_until(stopping))
        yield
        stopping.set()
        await sweeper

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok", "files": self._store.quota.files, "bytes": self._store.quota.total_bytes})

    async def upload(self, request: Request) -> Response:
        def feed(upload: Upload) -> tuple[Callable[[bytes], None], Callable[[], bool]]:
            return upload.write, lambda: True

        return await self._received(request, feed, extra_bytes=0, answer=self._answer)

    async def upload_historic(self, request: Request) -> Response:
        def feed(upload: Upload) -> tuple[Callable[[bytes], None], Callable[[], bool]]:
            field = FileField(request.headers.get("content-type", ""), upload.write)
            return field.feed, lambda: field.found and field.complete

        return await self._received(request, feed, extra_bytes=_MULTIPART_EXTRA_BYTES, answer=self._historic_answer)

    async def download(self, request: Request) -> Response:
        file = await run_in_threadpool(self._store.find, request.path_params["sha256"])
        if file is None:
            return _refusal(404, "no file of this digest is here; it may have expired")
        headers = {
            "ETag": f'"{file.sha256}"',
            "Cache-Control": "private, immutable",
            "X-Content-Type-Options": "nosniff",
        }
        if f'"{file.sha256}"' in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return FileResponse(
            self._store.path(file),
            media_type="application/octet-stream",
            headers=headers,
            content_disposition_type="attachment",
            filename=file.sha256,
        )

    async def _received(
        self,
        request: Request,
        feed: Callable[[Upload], tuple[Callable[[bytes], None], Callable[[], bool]]],
        *,
        extra_bytes: int,
        answer: Callable[[StoredFile], dict[str, object]],
    ) -> Response:
        try:
            party = await run_in_threadpool(self._party, request)
            if refused := self._refused(request, extra_bytes):
                return refused
            async with asyncio.timeout(UPLOAD_S):
                stored = await self._stored(request, feed, extra_bytes, party)
        except (BrokerError, StorageError) as error:
            return _refusal(_STATUS.get(type(error), 400), str(error))
        except TimeoutError:
            return _refusal(408, f"the upload took longer than {UPLOAD_S:.0f} s")
        except ClientDisconnect:
            return _refusal(400, "the client went away")
        logger.info("stored file %s of %d bytes for %s", stored.sha256, stored.size_bytes, party or "everyone")
        return JSONResponse(answer(stored), status_code=201)

    async def _stored(
        self,
        request: Request,
        feed: Callable[[Upload], tuple[Callable[[bytes], None], Callable[[], bool]]],
        extra_bytes: int,
        party: str | None,
    ) -> StoredFile:
        received = 0
        with self._store.receive(party) as upload:
            take, is_complete = feed(upload)
            async for chunk in request.stream():
                received += len(chunk)
                if received > self._store.limits.max_file_bytes + extra_bytes:
                    raise FileTooLargeError(f"a file may have {self._store.limits.max_file_bytes} bytes")
                await run_in_threadpool(take, chunk)
            if not is_complete():
                raise BadUploadError("the multipart body holds no complete field 'file'")
            return await run_in_threadpool(upload.finish)

    def _party(self, request: Request) -> str | None:
        """Return who uploads; None where all share what there is. Raises UnknownTokenError or StorageError."""
        if self._options.tokens is None:
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return self._options.tokens.party_of(given.strip() if scheme.lower() == "bearer" else "")

    def _refused(self, request: Request, extra_bytes: int) -> Response | None:
        """Refuse what can be refused before a byte of the body was read."""
        if request.headers.get("content-encoding", "identity") != "identity":
            return _refusal(415, "send the file as it is, without Content-Encoding")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._store.limits.max_file_bytes + extra_bytes:
            return _refusal(413, f"a file may have {self._store.limits.max_file_bytes} bytes")
        return None

    def _url(self, stored: StoredFile) -> str:
        return f"{self._options.public_url}/files/{stored.sha256}"

    def _answer(self, stored: StoredFile) -> dict[str, object]:
        return {
            "url": self._url(stored),
            "sha256": stored.sha256,
            "size_bytes": stored.size_bytes,
            "expires": _moment(stored.expires),
        }

    def _historic_answer(self, stored: StoredFile) -> dict[str, object]:
        return {"url": self._url(stored), "file": self._url(stored), "created_at": _moment(stored.stored)}

    async def _sweep_until(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), SWEEP_S)
            try:
                deleted = await run_in_threadpool(self._store.sweep)
            except OSError as error:
                logger.warning("expired files cannot be deleted: %s", error)
            else:
                logger.info("deleted %d expired files", deleted)


def _refusal(status: int, reason: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


def _moment(timestamp: float) -> str:
    return dt.datetime.fromtimestamp(timestamp, dt.UTC).isoformat()
