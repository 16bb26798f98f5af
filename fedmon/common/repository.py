"""The client of the file repository: store a file, and fetch one by digest from where the owner allows it.

Nothing that the other side says is believed: no redirect is followed, no proxy of the environment is used, the body is
counted while it comes in, all of it ends by a deadline, and the bytes must have the expected digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.repository_address import RepositoryError, Target, UrlRefusedError, checked_target
from fedmon.common.settings import RepositorySettings

if TYPE_CHECKING:
    import requests

__all__ = ["RepositoryError", "UrlRefusedError", "download", "upload"]

UPLOAD_S = 60.0
_CHUNK_BYTES = 65_536
_MAX_ANSWER_BYTES = 65_536
_HISTORIC_PATH = "/upload"


def download(
    url: str,
    *,
    sha256: str | None,
    max_bytes: int,
    deadline_s: float,
    allowed_urls: Sequence[str],
    size_bytes: int | None = None,
    ca_file: Path | None = None,
) -> bytes:
    """Fetch a file that has this digest, and this size when one is given; a null digest takes what is there.

    ``ca_file`` holds the authorities to trust in place of the system's. Raises UrlRefusedError before anything is
    sent, and RepositoryError for every other failure.
    """
    deadline = Deadline(deadline_s)
    target = checked_target(url, allowed_urls, deadline=deadline)
    with _answer("GET", target, deadline, ca_file=ca_file) as response:
        if response.status_code != 200:
            raise RepositoryError(
                f"{url} answered {_status(response)}; 200 was expected and nothing else is followed",
                http_status=response.status_code,
            )
        content = _body(response, max_bytes=max_bytes, what=url)
    if size_bytes is not None and len(content) != size_bytes:
        raise RepositoryError(f"{url} holds {len(content)} bytes, not the {size_bytes} that were announced")
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise RepositoryError(f"{url} holds a file with digest {found}, not {sha256}; it is not what was announced")
    return content


def upload(content: bytes, repository: RepositorySettings, *, ca_file: Path | None = None) -> str:
    """Store a file in the repository of the settings and return the URL that it has there.

    A repository whose URL ends in ``/upload/`` is spoken to in the historic form. Raises RepositoryError.
    """
    if repository.url is None:
        raise RepositoryError("no file repository is set: `url` in [repository], or FEDMON_REPOSITORY_URL")
    deadline = Deadline(UPLOAD_S)
    historic = repository.url.rstrip("/").endswith(_HISTORIC_PATH)
    url = repository.url.rstrip("/") + ("/" if historic else "/files")
    target = checked_target(url, [repository.url], deadline=deadline)
    token = repository.token()
    body: dict[str, Any] = {"files": {"file": ("plan.py", content)}} if historic else {"data": content}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with _answer("POST", target, deadline, headers=headers, body=body, ca_file=ca_file) as response:
        answer = _body(response, max_bytes=_MAX_ANSWER_BYTES, what=url)
        if response.status_code not in (200, 201):
            raise RepositoryError(f"{url} did not store the file: {_status(response)}{_reason(answer)}")
    document = _document(answer, url)
    if document.get("sha256", hashlib.sha256(content).hexdigest()) != hashlib.sha256(content).hexdigest():
        raise RepositoryError(f"{url} says that it stored other bytes than it was given")
    stored = document.get("file") if historic else document.get("url")
    if not isinstance(stored, str):
        raise RepositoryError(f"{url} stored the file but did not say where; is it a file repository?")
    return stored


@contextlib.contextmanager
def _answer(
    method: str,
    target: Target,
    deadline: Deadline,
    *,
    headers: dict[str, str] | None = None,
    body: dict[str, Any] | None = None,
    ca_file: Path | None,
) -> Iterator[requests.Response]:
    import requests
    import urllib3

    with requests.Session() as session, _Line(target, deadline) as line:
        # Neither proxies nor credentials nor certificates of the environment.
        session.trust_env = False
        session.mount(target.url, line.adapter(ca_file))
        try:
            with session.request(
                method,
                target.url,
                headers={"Accept-Encoding": "identity", "Connection": "close", **(headers or {})},
                allow_redirects=False,
                stream=True,
                timeout=max(deadline.left_s(), 0.001),
                verify=str(ca_file) if ca_file else True,
                **(body or {}),
            ) as response:
                yield response
            if deadline.passed():
                # The line was cut, which looks like the end of a body of unknown length.
                raise TimeoutError
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if deadline.passed():
                raise RepositoryError(f"{target.url} did not finish in {deadline.elapsed_s():.1f} s") from None
            raise RepositoryError(f"{target.url} cannot be reached: {_cause(error)}") from None


def _body(response: requests.Response, *, max_bytes: int, what: str) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise RepositoryError(f"{what} answered in the encoding {encoding!r}, which was not asked for")
    announced = response.headers.get("Content-Length", "0")
    content = bytearray()
    if not announced.isdigit() or int(announced) > max_bytes:
        raise RepositoryError(f"{what} announces {announced[:20]} bytes; {max_bytes} are allowed")
    while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):
        content += chunk
        if len(content) > max_bytes:
            raise RepositoryError(f"{what} sends more than the {max_bytes} bytes that are allowed")
    return bytes(content)


class _Line:
    """The one connection to a target: it goes to a checked address, and is cut when the deadline passes."""

    def __init__(self, target: Target, deadline: Deadline) -> None:
        self._target, self._deadline = target, deadline
        self._cutter: threading.Timer | None = None
        self._second_handle: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._cutter is not None:
            self._cutter.cancel()
            self._cutter.join()
        if self._second_handle is not None:
            self._second_handle.close()

    def connect(self) -> socket.socket:
        """Connect to the first checked address that answers. Raises OSError."""
        failure: OSError = OSError("no address")
        for address in self._target.addresses:
            try:
                connection = socket.create_connection((address, self._target.port), timeout=self._deadline.left_s())
            except OSError as error:
                failure = error
                continue
            # A timeout of the socket starts anew with each byte that drips in; only cutting the line ends all of it.
            self._second_handle = connection.dup()
            self._cutter = threading.Timer(self._deadline.left_s(), self._cut)
            self._cutter.name = "fedmon-download-deadline"
            self._cutter.start()
            return connection
        raise failure

    def _cut(self) -> None:
        if self._second_handle is not None:
            with contextlib.suppress(OSError):
                self._second_handle.shutdown(socket.SHUT_RDWR)

    def adapter(self, ca_file: Path | None) -> requests.adapters.HTTPAdapter:
        """Make what has `requests` use this line, and the system's authorities unless others are given."""
        from requests.adapters import HTTPAdapter
        from urllib3.connection import HTTPConnection, HTTPSConnection
        from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
        from urllib3.exceptions import NewConnectionError

        line = self

        def new_connection(connection: HTTPConnection) -> socket.socket:
            try:
                return line.connect()
            except OSError as error:
                raise NewConnectionError(connection, str(error)) from error

        class Plain(HTTPConnection):
            _new_conn = new_connection

        class Encrypted(HTTPSConnection):
            _new_conn = new_connection

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class EncryptedPool(HTTPSConnectionPool):
            ConnectionCls = Encrypted

        class Adapter(HTTPAdapter):
            def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
                context = ssl.create_default_context(cafile=ca_file)
                super().init_poolmanager(*arguments, **options, ssl_context=context)
                self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": EncryptedPool}

        return Adapter(max_retries=0)


def _status(response: requests.Response) -> str:
    return f"{response.status_code} {response.reason or ''}".strip()[:100]


def _cause(error: Exception) -> str:
    inner: BaseException = error
    while (next_inner := inner.__cause__ or inner.__context__) is not None:
        inner = next_inner
    cause = " ".join(str(inner).split())[:200] or type(inner).__name__
    if isinstance(inner, ssl.SSLCertVerificationError):
        cause += "; for an authority of your own, name its certificate in the environment variable SSL_CERT_FILE"
    return cause


def _document(answer: bytes, url: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        raise RepositoryError(f"{url} did not answer with JSON; is it a file repository?")
    return document


def _reason(answer: bytes) -> str:
    try:
        reason = msgspec.json.decode(answer)["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return ""
    return f": {' '.join(str(reason).split())[:200]}"
