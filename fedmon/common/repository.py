"""The client of the file repository: store a file, and fetch one by digest from where the owner allows it.

Nothing that the other side says is believed: no redirect is followed, no proxy of the environment is used, the body is
counted while it comes in, all of it ends by a deadline, and the bytes must have the expected digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.repository_address import RepositoryError, Target, UrlRefusedError, checked_target
from fedmon.common.repository_line import Line
from fedmon.common.settings import RepositorySettings

if TYPE_CHECKING:
    import requests

__all__ = ["RepositoryError", "UrlRefusedError", "download", "download_to", "upload", "upload_from"]

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
    content = io.BytesIO()
    found = _fetch(url, content, max_bytes=max_bytes, deadline_s=deadline_s, allowed_urls=allowed_urls, ca_file=ca_file)
    _check(url, found, sha256=sha256, size_bytes=size_bytes, received=content.tell())
    return content.getvalue()


def download_to(
    file: BinaryIO,
    url: str,
    *,
    sha256: str,
    size_bytes: int,
    max_bytes: int,
    deadline_s: float,
    allowed_urls: Sequence[str],
    ca_file: Path | None = None,
) -> None:
    """Fetch a file that has this digest and size into an open one, without ever having all of it in memory.

    What was written is worth nothing when this raises; errors are as in `download`, a full disk among them.
    """
    begun = file.tell()
    found = _fetch(url, file, max_bytes=max_bytes, deadline_s=deadline_s, allowed_urls=allowed_urls, ca_file=ca_file)
    _check(url, found, sha256=sha256, size_bytes=size_bytes, received=file.tell() - begun)


def upload(content: bytes, repository: RepositorySettings, *, ca_file: Path | None = None) -> str:
    """Store a file in the repository of the settings and return the URL that it has there.

    A repository whose URL ends in ``/upload/`` is spoken to in the historic form. Raises RepositoryError.
    """
    return _upload(content, hashlib.sha256(content).hexdigest(), repository, deadline_s=UPLOAD_S, ca_file=ca_file)


def upload_from(
    file: BinaryIO,
    repository: RepositorySettings,
    *,
    sha256: str,
    deadline_s: float = UPLOAD_S,
    ca_file: Path | None = None,
) -> str:
    """Store what an open file holds from its beginning on, whose digest is known; as `upload` in everything else.

    A repository that is spoken to in the historic form gets it from memory. Raises RepositoryError.
    """
    file.seek(0)
    return _upload(file, sha256, repository, deadline_s=deadline_s, ca_file=ca_file)


def _upload(
    content: bytes | BinaryIO,
    sha256: str,
    repository: RepositorySettings,
    *,
    deadline_s: float,
    ca_file: Path | None,
) -> str:
    if repository.url is None:
        raise RepositoryError("no file repository is set: `url` in [repository], or FEDMON_REPOSITORY_URL")
    deadline = Deadline(deadline_s)
    historic = repository.url.rstrip("/").endswith(_HISTORIC_PATH)
    url = repository.url.rstrip("/") + ("/" if historic else "/files")
    target = checked_target(url, [repository.url], deadline=deadline)
    token = repository.token()
    body: dict[str, Any] = {"files": {"file": ("plan.py", content)}} if historic else {"data": content}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with _answer("POST", target, deadline, headers=headers, body=body, ca_file=ca_file) as response:
        answer = b"".join(_body(response, max_bytes=_MAX_ANSWER_BYTES, what=url))
        if response.status_code not in (200, 201):
            raise RepositoryError(f"{url} did not store the file: {_status(response)}{_reason(answer)}")
    document = _document(answer, url)
    if document.get("sha256", sha256) != sha256:
        raise RepositoryError(f"{url} says that it stored other bytes than it was given")
    stored = document.get("file") if historic else document.get("url")
    if not isinstance(stored, str):
        raise RepositoryError(f"{url} stored the file but did not say where; is it a file repository?")
    return stored


def _fetch(
    url: str,
    file: BinaryIO,
    *,
    max_bytes: int,
    deadline_s: float,
    allowed_urls: Sequence[str],
    ca_file: Path | None,
) -> str:
    """Write what lies at a URL into a file, and return its digest."""
    deadline = Deadline(deadline_s)
    target = checked_target(url, allowed_urls, deadline=deadline)
    digest = hashlib.sha256()
    with _answer("GET", target, deadline, ca_file=ca_file) as response:
        if response.status_code != 200:
            raise RepositoryError(
                f"{url} answered {_status(response)}; 200 was expected and nothing else is followed",
                http_status=response.status_code,
            )
        for chunk in _body(response, max_bytes=max_bytes, what=url):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _check(url: str, found: str, *, sha256: str | None, size_bytes: int | None, received: int) -> None:
    if size_bytes is not None and received != size_bytes:
        raise RepositoryError(f"{url} holds {received} bytes, not the {size_bytes} that were announced")
    if sha256 is not None and found != sha256:
        raise RepositoryError(f"{url} holds a file with digest {found}, not {sha256}; it is not what was announced")


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

    with requests.Session() as session, Line(target, deadline) as line:
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


def _body(response: requests.Response, *, max_bytes: int, what: str) -> Iterator[bytes]:
    """Yield the body as it comes. Raises RepositoryError when it is too long, or not as it was asked for."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise RepositoryError(f"{what} answered in the encoding {encoding!r}, which was not asked for")
    announced = response.headers.get("Content-Length", "0")
    received = 0
    if not announced.isdigit() or int(announced) > max_bytes:
        raise RepositoryError(f"{what} announces {announced[:20]} bytes; {max_bytes} are allowed")
    while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):
        received += len(chunk)
        if received > max_bytes:
            raise RepositoryError(f"{what} sends more than the {max_bytes} bytes that are allowed")
        yield chunk


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
