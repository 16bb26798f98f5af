"""The client of the file repository: store a file, and fetch one by digest from addresses that the owner allows.

A URL must lie under an allowed one. Its name is resolved once, every address found is checked, and the connection goes
to a checked address, so that an answer of the name service that changes in between changes nothing. Nothing that the
other side says is believed: no redirect is followed, no proxy of the environment is used, the body is counted while it
comes in, all of it ends by a deadline, and the bytes must have the expected digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import ipaddress
import os
import queue
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError, untrusted
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.text import one_line, shorten

if TYPE_CHECKING:
    from http.client import HTTPResponse

MAX_URL_LENGTH = 2048
UPLOAD_S = 60.0
_CHUNK_BYTES = 65_536
_MAX_ANSWER_BYTES = 65_536
_HISTORIC_PATH = "/upload"

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_PLAIN = re.compile(r"[!-~]+")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_HIDDEN = re.compile(r"%(2f|5c|00|2e|25)", re.IGNORECASE)
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
# IPv6 forms that carry an IPv4 address to a gateway: NAT64, 6to4, Teredo.
_CARRIERS = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))


class RepositoryError(FedmonError):
    """A file could not be stored in, or fetched from, the file repository.

    ``http_status`` is the server's status, 0 if it did not answer or the status was not the problem.
    """

    def __init__(self, message: str, *, http_status: int = 0) -> None:
        super().__init__(message)
        self.http_status = http_status


class UrlRefusedError(RepositoryError):
    """A URL, or an address behind it, is not one that this party connects to."""

    exit_code = 4


class Target(NamedTuple):
    """A URL in its parts, with the checked addresses of its host."""

    url: str
    scheme: str
    host: str
    port: int
    path: str
    addresses: tuple[str, ...] = ()


def addresses_of(host: str) -> list[str]:
    """Ask the system for every address of a host. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def checked_target(
    url: str, allowed_urls: Sequence[str], *, deadline: Deadline, resolve: Callable[[str], list[str]] = addresses_of
) -> Target:
    """Return where a URL leads when it may be used.

    https goes to public addresses, and to private ones too, as the certificate proves the host; http goes only to
    loopback and private addresses that are written as numbers (or ``localhost``). Loopback is reached by no other
    name. ``resolve`` is asked once. Raises UrlRefusedError, or RepositoryError when the name is not resolved in time.
    """
    target = _parsed(url)
    if not any(_lies_under(target, _parsed(allowed)) for allowed in allowed_urls):
        raise UrlRefusedError(
            f"{url!r} is not under an allowed address; allowed are: {', '.join(allowed_urls) or 'none'} "
            f"(allowed_urls in [repository])"
        )
    addresses = _resolved(target.host, resolve, deadline)
    for address in addresses:
        if reason := _refusal(target, address):
            raise UrlRefusedError(f"{url!r} leads to {address}: {reason}")
    return target._replace(addresses=tuple(map(str, addresses)))


def _parsed(url: str) -> Target:
    if len(url) > MAX_URL_LENGTH or not _PLAIN.fullmatch(url) or "\\" in url:
        raise UrlRefusedError(f"{url[:100]!r} is not a plain URL of at most {MAX_URL_LENGTH} ASCII characters")
    try:
        split = urlsplit(url)
        host = (split.hostname or "").rstrip(".")
        if "[" in split.netloc:
            host = str(ipaddress.IPv6Address(host))
        port = split.port or (443 if split.scheme == "https" else 80)
    except ValueError as error:
        raise UrlRefusedError(f"{url!r} is not a URL: {error}") from None
    if split.scheme not in ("http", "https"):
        raise UrlRefusedError(f"{url!r} is neither http nor https")
    if "@" in split.netloc or split.fragment or "#" in url:
        raise UrlRefusedError(f"{url!r} holds a user name or a fragment; neither belongs there")
    if not _HOST.fullmatch(host) and "[" not in split.netloc:
        raise UrlRefusedError(f"{url!r} names no usable host")
    if _HIDDEN.search(split.path) or any(unquote(part) in {".", ".."} for part in split.path.split("/")):
        raise UrlRefusedError(f"{url!r} hides a way out of its path")
    return Target(url, split.scheme, host, port, split.path)


def _lies_under(target: Target, base: Target) -> bool:
    return (target.scheme, target.host, target.port) == (base.scheme, base.host, base.port) and (
        target.path.rstrip("/") == base.path.rstrip("/") or target.path.startswith(base.path.rstrip("/") + "/")
    )


def _resolved(host: str, resolve: Callable[[str], list[str]], deadline: Deadline) -> list[_Ip]:
    """Resolve a name within the deadline, which the name service itself knows nothing of."""
    answer: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(resolve(host))
        except (OSError, UnicodeError) as error:
            answer.put(error if isinstance(error, OSError) else OSError(str(error)))

    # A resolver that hangs cannot be stopped; it must not keep a process that wants to end.
    threading.Thread(target=ask, name="fedmon-resolver", daemon=True).start()
    try:
        names = answer.get(timeout=deadline.left_s())
    except queue.Empty:
        raise RepositoryError(f"the name {host!r} was not resolved in {deadline.elapsed_s():.1f} s") from None
    if isinstance(names, OSError):
        raise RepositoryError(f"the name {host!r} cannot be resolved: {names.strerror or names}")
    return [ipaddress.ip_address(name.partition("%")[0]) for name in names]


def _refusal(target: Target, address: _Ip) -> str | None:
    """Say why an address must not be connected to, or None."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _refusal(target, address.ipv4_mapped)
        if any(address in network for network in _CARRIERS):
            return "an IPv4 address in disguise"
    is_number = target.host == str(address)
    if address.is_loopback:
        named = is_number or target.host == "localhost"
        return None if named else "this machine itself, under a name that does not say so"
    if any(address.version == network.version and address in network for network in _PRIVATE):
        if target.scheme == "https" or is_number:
            return None
        return "a private address behind a name; use https, or allow the address itself"
    if not address.is_global or address.is_multicast:
        return "not an address of a file server (link-local, multicast or reserved)"
    return None if target.scheme == "https" else "a public address without TLS; use https"


def download(
    url: str,
    *,
    sha256: str | None,
    max_bytes: int,
    deadline_s: float,
    allowed_urls: Sequence[str],
) -> bytes:
    """Fetch a file; like `download_to`, but into memory, and of any size."""
    content = io.BytesIO()
    limits: dict[str, Any] = {"max_bytes": max_bytes, "deadline_s": deadline_s, "allowed_urls": allowed_urls}
    download_to(content, url, sha256=sha256, size_bytes=None, **limits)
    return content.getvalue()


def download_to(
    file: BinaryIO,
    url: str,
    *,
    sha256: str | None,
    size_bytes: int | None,
    max_bytes: int,
    deadline_s: float,
    allowed_urls: Sequence[str],
) -> None:
    """Fetch a file that has this digest and size into an open one; None takes any digest or size.

    The written bytes are worthless if this raises. Raises UrlRefusedError before anything is sent, and
    RepositoryError for every other failure, a full disk among them.
    """
    deadline = Deadline(deadline_s)
    target = checked_target(url, allowed_urls, deadline=deadline)
    digest, received = hashlib.sha256(), 0
    with _answer("GET", target, deadline) as response:
        if response.status != 200:
            raise RepositoryError(
                f"{url} answered {response.status} {_shown(response.reason)}; only 200 is taken, and no redirect",
                http_status=response.status,
            )
        for chunk in _body(response, max_bytes=max_bytes, what=url):
            digest.update(chunk)
            received += len(chunk)
            file.write(chunk)
    if size_bytes is not None and received != size_bytes:
        raise RepositoryError(f"{url} holds {received} bytes, not the {size_bytes} that were announced")
    if sha256 is not None and digest.hexdigest() != sha256:
        raise RepositoryError(
            f"{url} holds a file with digest {digest.hexdigest()}, not {sha256}; it is not the announced file"
        )


def upload(content: bytes, repository: RepositorySettings, *, deadline_s: float = UPLOAD_S) -> str:
    """Store a file in the repository of the settings; like `upload_from`, but from memory."""
    sha256 = hashlib.sha256(content).hexdigest()
    return upload_from(io.BytesIO(content), repository, sha256=sha256, deadline_s=deadline_s)


def upload_from(file: BinaryIO, repository: RepositorySettings, *, sha256: str, deadline_s: float = UPLOAD_S) -> str:
    """Store all of an open file, whose digest is known, and return the URL that it has in the repository.

    A repository whose URL ends in ``/upload/`` is spoken to in the historic form, from memory. Raises RepositoryError.
    """
    deadline = Deadline(deadline_s)
    base = (repository.url or "").rstrip("/")
    historic = base.endswith(_HISTORIC_PATH)
    url = base + ("/" if historic else "/files")
    target = checked_target(url, [base], deadline=deadline)
    token = repository.token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    if historic:
        from urllib3.filepost import encode_multipart_formdata

        form, headers["Content-Type"] = encode_multipart_formdata({"file": ("plan.py", file.read())})
        file, size_bytes = io.BytesIO(form), len(form)
    headers["Content-Length"] = str(size_bytes)
    with _answer("POST", target, deadline, headers=headers, body=file) as response:
        answer = b"".join(_body(response, max_bytes=_MAX_ANSWER_BYTES, what=url))
    document: Any = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        document = msgspec.json.decode(answer)
    if response.status not in (200, 201):
        reason = f": {_shown(document['error'])}" if isinstance(document, dict) and "error" in document else ""
        raise RepositoryError(f"{url} did not store the file: {response.status} {_shown(response.reason)}{reason}")
    if not isinstance(document, dict):
        raise RepositoryError(f"{url} did not answer with JSON; is it a file repository?")
    if document.get("sha256", sha256) != sha256:
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
    body: BinaryIO | None = None,
) -> Iterator[HTTPResponse]:
    """Send a request and give the answer, whose body is not read yet; everything ends by the deadline."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    split = urlsplit(target.url)
    kind = HTTPSConnection if target.scheme == "https" else HTTPConnection
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(contextlib.closing(kind(target.host, target.port)))
            connection.sock = stack.enter_context(_connected(target, deadline))
            # A server that refuses a body may answer and close before all of it is sent.
            with contextlib.suppress(BrokenPipeError):
                path = f"{split.path or '/'}{f'?{split.query}' if split.query else ''}"
                connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            yield connection.getresponse()
        if deadline.passed():
            # The connection was cut, which looks like the end of a body of unknown length.
            raise TimeoutError
    except (HTTPException, OSError, ValueError) as error:
        if deadline.passed():
            raise RepositoryError(f"{target.url} did not finish in {deadline.elapsed_s():.1f} s") from None
        raise RepositoryError(f"the transfer with {target.url} failed: {_cause(error)}") from None


@contextlib.contextmanager
def _connected(target: Target, deadline: Deadline) -> Iterator[socket.socket]:
    """Connect to the first checked address that answers, and cut the connection when the deadline passes."""
    for left, address in zip(range(len(target.addresses), 0, -1), target.addresses, strict=True):
        try:
            raw = socket.create_connection((address, target.port), timeout=max(deadline.left_s() / left, 0.001))
            break
        except OSError:
            if left == 1:
                raise
    # A timeout of the socket starts anew with each byte that drips in; only cutting the connection ends all of it.
    raw.settimeout(None)
    second_handle = raw.dup()
    cutter = threading.Timer(deadline.left_s(), _cut, [second_handle])
    cutter.name = "fedmon-download-deadline"
    cutter.start()
    try:
        if target.scheme == "https":
            with raw, ssl.create_default_context().wrap_socket(raw, server_hostname=target.host) as encrypted:
                yield encrypted
        else:
            with raw:
                yield raw
    finally:
        cutter.cancel()
        cutter.join()
        second_handle.close()


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _body(response: HTTPResponse, *, max_bytes: int, what: str) -> Iterator[bytes]:
    """Yield the body as it comes. Raises RepositoryError when it is too long, or not as it was asked for."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise RepositoryError(f"{what} answered in the encoding {encoding!r}, which was not asked for")
    announced = response.headers.get("Content-Length", "0")
    received = 0
    if not announced.isdigit() or int(announced) > max_bytes:
        raise RepositoryError(f"{what} announces {announced[:20]} bytes; {max_bytes} are allowed")
    while chunk := response.read1(_CHUNK_BYTES):
        received += len(chunk)
        if received > max_bytes:
            raise RepositoryError(f"{what} sends more than the {max_bytes} bytes that are allowed")
        yield chunk
    if received < int(announced):
        raise ConnectionError(f"the body ended after {received} of {announced} bytes")


def _shown(text: object) -> str:
    return shorten(one_line(str(text)), 200)


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return untrusted(
            error.verify_code,
            error.verify_message,
            "name the certificate of its authority in the environment variable SSL_CERT_FILE",
        )
    return _shown(error.strerror if isinstance(error, OSError) and error.strerror else error) or type(error).__name__
