"""The client of the file repository fetches what its owner allowed, and nothing else reaches any server."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.clock import Deadline
from fedmon.common.http import RepositoryError, UrlRefusedError, checked_target, download, download_to, upload
from fedmon.common.settings.values import RepositorySettings
from tests.support.hostile_urls import BESIDE_FILES
from tests.support.passwords import secret_file
from tests.support.stubborn import full_peer, peer

CONTENT = b"class Plan: ...\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


Answer = Callable[[socket.socket, "Server"], object]


class Server:
    """What came to a server at a port: connections, requests, and whether one of them has ended."""

    def __init__(self) -> None:
        self.port = self.connections = self.sent_bytes = 0
        self.requests: list[bytes] = []
        self.gone = threading.Event()


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    """Answer every connection with one script."""
    server = Server()

    def serve(connection: socket.socket) -> None:
        server.connections += 1
        try:
            server.requests.append(connection.recv(65_536))
            answer(connection, server)
        finally:
            server.gone.set()

    with peer(serve) as server.port:
        yield server


def answering(body: bytes, *headers: str, status: str = "200 OK") -> Answer:
    head = "\r\n".join([f"HTTP/1.1 {status}", *(headers or [f"Content-Length: {len(body)}"]), "", ""])
    return lambda connection, _server: connection.sendall(head.encode() + body)


def fetch(server: Server, path: str = "/files/x", *, max_bytes: int = 10_000, deadline_s: float = 5.0) -> bytes:
    base = f"http://127.0.0.1:{server.port}"
    return download(base + path, sha256=DIGEST, max_bytes=max_bytes, deadline_s=deadline_s, allowed_urls=[base])


def test_a_file_of_an_allowed_address_is_fetched() -> None:
    with serving(answering(CONTENT)) as server:
        content = fetch(server)

    assert content == CONTENT
    assert b"Accept-Encoding: identity\r\n" in server.requests[0]


# {p} is the port of the sentinel; the allowed addresses are those of `ALLOWED`.
ALLOWED = ["http://127.0.0.1:{p}/files", "https://plans.example.org/files", "http://localhost:{p}/files"]


def test_a_hostile_url_reaches_no_server() -> None:
    with serving(answering(CONTENT)) as sentinel:
        allowed = [url.format(p=sentinel.port) for url in ALLOWED]
        for url in BESIDE_FILES:
            with pytest.raises(UrlRefusedError):
                download(
                    url.replace("{p}", str(sentinel.port)),
                    sha256=DIGEST,
                    max_bytes=1000,
                    deadline_s=60.0,
                    allowed_urls=allowed,
                )

        assert sentinel.connections == 0
    assert len(BESIDE_FILES) >= 25


PUBLIC, PRIVATE = "93.184.216.34", "192.168.7.7"


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["0.0.0.0"],
        ["169.254.169.254"],
        ["fe80::1%eth0"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["224.0.0.1"],
        ["255.255.255.255"],
        [PUBLIC, "127.0.0.1"],
    ],
)
def test_a_name_with_one_forbidden_address_is_refused(addresses: list[str]) -> None:
    url = "https://plans.example.org/x"

    with pytest.raises(UrlRefusedError, match="leads to"):
        checked_target(url, [url], deadline=Deadline(5.0), resolve=lambda _host: addresses)


@pytest.mark.parametrize(
    ("url", "address", "allowed"),
    [
        ("https://plans.example.org/x", PUBLIC, True),
        ("https://plans.example.org/x", PRIVATE, True),
        ("http://plans.example.org/x", PUBLIC, False),
        ("http://plans.example.org/x", PRIVATE, False),
        (f"http://{PRIVATE}/x", PRIVATE, True),
        ("http://[fd00::1]/x", "fd00::1", True),
        (f"http://{PUBLIC}/x", PUBLIC, False),
        ("http://localhost/x", "127.0.0.1", True),
        ("http://localhost/x", PUBLIC, False),
        ("http://0.0.0.0/x", "0.0.0.0", False),
        ("http://169.254.169.254/x", "169.254.169.254", False),
        ("http://[::ffff:127.0.0.1]/x", "::ffff:127.0.0.1", False),
        ("http://2130706433/x", "127.0.0.1", False),
        ("https://[2002:7f00:1::]/x", "2002:7f00:1::", False),
    ],
)
def test_private_addresses_need_https_or_their_own_number(url: str, address: str, *, allowed: bool) -> None:
    asked: list[str] = []

    def resolve(host: str) -> list[str]:
        asked.append(host)
        return [address]

    with contextlib.nullcontext() if allowed else pytest.raises(UrlRefusedError):
        target = checked_target(url, [url], deadline=Deadline(5.0), resolve=resolve)

        # The connection goes to what was checked; the name is not asked for again.
        assert target.addresses == (address,)
    assert len(asked) == 1


def test_a_name_service_that_hangs_ends_with_the_deadline() -> None:
    released = threading.Event()

    def hang(_host: str) -> list[str]:
        released.wait(10.0)
        return []

    with pytest.raises(RepositoryError, match="was not resolved"):
        checked_target("https://a.example/", ["https://a.example"], deadline=Deadline(0.2), resolve=hang)
    released.set()


def test_an_address_that_does_not_answer_leaves_the_next_one_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a host with two addresses, of which the first has a full queue of connections
    asked = socket.getaddrinfo
    answers = {"localhost": ("127.0.0.2", "127.0.0.1")}

    def resolve(host: str, port: int | None, *arguments: Any, **options: Any) -> list[Any]:
        return [found for each in answers.get(host, (host,)) for found in asked(each, port, *arguments, **options)]

    with serving(answering(CONTENT)) as server, full_peer(address="127.0.0.2", port=server.port):
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        base = f"http://localhost:{server.port}"

        content = download(f"{base}/x", sha256=DIGEST, max_bytes=1000, deadline_s=10.0, allowed_urls=[base])

    assert content == CONTENT


@pytest.mark.parametrize("location", ["http://127.0.0.1:{p}/files/y", "http://169.254.169.254/", "file:///etc/passwd"])
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_not_followed(status: str, location: str) -> None:
    with serving(answering(CONTENT)) as sentinel:
        redirect = answering(b"", f"Location: {location.format(p=sentinel.port)}", "Content-Length: 0", status=status)
        with serving(redirect) as server, pytest.raises(RepositoryError, match=status[:3]):
            fetch(server)

        assert sentinel.connections == 0


def test_an_endless_body_is_cut_at_the_cap() -> None:
    def endless(connection: socket.socket, server: Server) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            server.sent_bytes += connection.send(b"x" * 4096)

    with serving(endless) as server:
        with pytest.raises(RepositoryError, match="more than the 10000 bytes"):
            fetch(server, max_bytes=10_000)

        assert server.gone.wait(30.0)
    # What the kernel buffers on both sides is not ours to bound.
    assert server.sent_bytes < 8_000_000


@pytest.mark.parametrize("part", ["nothing", "status line", "headers", "body", "body of unknown length", "chunks"])
def test_a_slow_or_silent_answer_ends_with_the_deadline(part: str) -> None:
    heads = {
        "nothing": b"",
        "status line": b"",
        "headers": b"HTTP/1.1 200 OK\r\n",
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n",
        "body of unknown length": b"HTTP/1.1 200 OK\r\n\r\n",
        "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    }
    drips = {"nothing": b"", "headers": b"X-A: b\r\n", "chunks": b"1\r\nx\r\n"}

    def drip(connection: socket.socket, server: Server) -> None:
        connection.sendall(heads[part])
        while not server.gone.wait(0.05):
            connection.sendall(drips.get(part, b"H"))

    waited = Deadline(0.5)
    with serving(drip) as server:
        with pytest.raises(RepositoryError, match="did not finish in"):
            fetch(server, deadline_s=0.5)
        server.gone.set()

    assert waited.elapsed_s() < 10


BOMB = gzip.compress(b"\0" * 10_000_000)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answering(CONTENT + b"#"), f"not {DIGEST}"),
        (answering(b"", "Content-Length: 10001"), "announces"),
        (answering(CONTENT, "Content-Length: 999"), "ended after 16 of 999 bytes"),
        (answering(BOMB, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}"), "encoding 'gzip'"),
        (answering(b"", status="404 Not Found"), "404 Not Found"),
        (answering(b"\0" * 9, ""), "digest"),
    ],
)
def test_an_answer_that_is_not_the_announced_file_is_refused(answer: Answer, reason: str) -> None:
    with serving(answer) as server, pytest.raises(RepositoryError, match=reason):
        fetch(server)


def test_a_disk_that_is_full_is_named_and_not_the_server() -> None:
    with serving(answering(CONTENT)) as server, Path("/dev/full").open("wb", buffering=0) as full:
        base = f"http://127.0.0.1:{server.port}"
        with pytest.raises(RepositoryError, match="No space left on device") as caught:
            download_to(
                full, f"{base}/x", sha256=DIGEST, size_bytes=None, max_bytes=1000, deadline_s=60.0, allowed_urls=[base]
            )

    assert "reached" not in str(caught.value)


def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answering(CONTENT)) as proxy, serving(answering(CONTENT)) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")

        fetch(server)

        assert (proxy.connections, server.connections) == (0, 1)


def test_an_upload_carries_the_token_and_returns_the_url(tmp_path: Path) -> None:
    token = secret_file(tmp_path / "token", "secret-token")
    with serving(answering(b'{"url": "http://127.0.0.1/files/x"}', status="201 Created")) as server:
        url = upload(CONTENT, RepositorySettings(url=f"http://127.0.0.1:{server.port}", token_file=token))

    assert url == "http://127.0.0.1/files/x"
    assert server.requests[0].startswith(b"POST /files HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret-token\r\n" in server.requests[0]


def test_the_token_goes_to_no_public_server_without_tls() -> None:
    with pytest.raises(UrlRefusedError, match="without TLS"):
        upload(CONTENT, RepositorySettings(url="http://8.8.8.8"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answering(b'{"error": "uploads need the token"}', status="401 Unauthorized"), r"401.*uploads need the token"),
        (answering(b'{"error": "no \\u001b[31mroom"}', status="507 Full\x1b[0m"), r"507 Full\\x1b.*no \\x1b\[31mroom$"),
        (answering(b'{"error": "' + b"x" * 999 + b'"}', status="500 Error"), r": x{199}…$"),
        (answering(b"<html>", status="200 OK"), "is it a file repository"),
        (answering(b"{}", status="201 Created"), "did not say where"),
        (answering(b'{"url": "u", "sha256": "0"}', status="201 Created"), "other bytes"),
        (answering(b"", "Content-Length: 999999"), "announces"),
    ],
)
def test_a_refused_upload_says_why(answer: Answer, reason: str) -> None:
    with serving(answer) as server, pytest.raises(RepositoryError, match=reason):
        upload(CONTENT, RepositorySettings(url=f"http://127.0.0.1:{server.port}"))
