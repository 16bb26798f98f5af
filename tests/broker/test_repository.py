"""The file repository as a real server: what goes in comes out, and nothing else goes in."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import shlex
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from fedmon.broker.configuration import template
from fedmon.broker.repository import UPLOAD_S
from fedmon.common.http import RepositoryError, download, upload
from fedmon.common.settings.values import RepositorySettings
from fedmon.node.runs import outcome
from tests.broker.certificates import make_broker_certificate
from tests.broker.shell import FEDMON, answer, fedmon_broker, foreground
from tests.support.ports import free_port
from tests.support.shell import Foreground
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

CONTENT = b"class Plan:\n    pass\n" + bytes(range(256))
DIGEST = hashlib.sha256(CONTENT).hexdigest()
MIB = 1_048_576


class Repository:
    """A running repository, and its token."""

    def __init__(self, running: Foreground, folder: Path, token_file: Path | None = None) -> None:
        self.url: str = running.facts["url"]
        self.folder = folder
        self.pid = running.process.pid
        self.token_file = token_file or Path(running.facts["token_file"])
        self.headers = {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}
        self.settings = RepositorySettings(url=self.url, token_file=self.token_file)
        self.port = int(self.url.rpartition(":")[2])

    def stored(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "sha256").iterdir())

    def on_disk(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def asked(
    url: str, method: str, path: str, headers: dict[str, str], *body: bytes
) -> Iterator[http.client.HTTPResponse]:
    """Send a request as it is, to the end of its body or until it is cut off; yields the answer."""
    with contextlib.closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in body:
                connection.send(piece)
        yield connection.getresponse()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("repository") / "files"
    with foreground(
        "repository", "start", "--port", "0", "--data-dir", folder, "--max-file-mib", "1", "--max-total-mib", "4"
    ) as running:
        yield Repository(running, folder)


@pytest.fixture(scope="module")
def tls_repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """A repository as the README starts it without containers, over TLS, with the tokens of its folder."""
    folder, port = tmp_path_factory.mktemp("tls"), free_port()
    answer("config", "write", folder)
    answer("repository", "token", "add", "alice", "--data-dir", folder, "--save", folder / "alice.token")
    make_broker_certificate(folder)
    line = re.search(r"^fedmon broker (repository start (?:.*\\\n)*.*)$", template("README.md"), re.MULTILINE)
    assert line is not None
    command = line[1].replace("\\\n", "").replace(" broker", f" {folder}")
    words = shlex.split(command.replace("broker.example.org:8890", f"localhost:{port}"))
    with foreground(*words, "--port", str(port)) as running:
        yield Repository(running, folder / "files", folder / "alice.token")


@pytest.fixture(scope="module", autouse=True)
def half_sent(repository: Repository, tls_repository: Repository) -> Iterator[dict[str, socket.socket]]:
    """Connections whose requests are never completed; opened before all tests, since they are cut after 10 s."""
    upload_head = f"POST /files HTTP/1.1\r\nHost: x\r\nAuthorization: {repository.headers['Authorization']}\r\n"
    begun = {
        "nothing": b"",
        "half a request line": b"GET /files/0123",
        "half of the headers": upload_head.encode(),
        "half a body": f"{upload_head}Content-Length: 1000\r\n\r\nonly this".encode(),
    }
    with contextlib.ExitStack() as held:
        connections = {}
        for what, start in begun.items():
            connections[what] = held.enter_context(socket.create_connection(("127.0.0.1", repository.port), timeout=30))
            connections[what].sendall(start)
        handshake = socket.create_connection(("127.0.0.1", tls_repository.port), timeout=30)
        yield connections | {"no handshake": held.enter_context(handshake)}


def test_a_file_comes_back_as_it_went_in(repository: Repository) -> None:
    url = upload(CONTENT, repository.settings)
    content = download(url, sha256=DIGEST, max_bytes=MIB, deadline_s=10.0, allowed_urls=[repository.url])

    assert url == f"{repository.url}/files/{DIGEST}"
    assert content == CONTENT
    assert DIGEST in repository.stored()
    assert (repository.folder / "sha256" / DIGEST).stat().st_mode & 0o777 == 0o600


def test_the_historic_upload_answers_as_it_always_did(repository: Repository) -> None:
    answer = requests.post(
        f"{repository.url}/upload/", files={"file": ("../my plan.py", CONTENT)}, headers=repository.headers, timeout=60
    )

    document = answer.json()
    assert (answer.status_code, set(document)) == (201, {"url", "file", "created_at"})
    assert document["file"] == document["url"] == f"{repository.url}/files/{DIGEST}"
    assert requests.get(document["file"], timeout=60).content == CONTENT
    assert list(repository.folder.parent.rglob("*my plan.py")) == []  # a name of the client is never used


def test_a_form_on_its_way_lies_in_the_folder_of_the_files(repository: Repository) -> None:
    head = f"POST /upload/ HTTP/1.1\r\nHost: x\r\nAuthorization: {repository.headers['Authorization']}\r\n"
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="plan"\r\n\r\n' + b"x" * 200_000

    def spooled() -> list[str]:
        links = []
        for descriptor in Path(f"/proc/{repository.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(str(descriptor.readlink()))
        return [link for link in links if link.endswith(" (deleted)")]

    with socket.create_connection(("127.0.0.1", repository.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n".encode())
        connection.sendall(b"Content-Length: 300000\r\n\r\n" + form)
        (place,) = wait_until(spooled, what="a form of which only a part has come")

    assert place.startswith(f"{repository.folder}/incoming/")


@pytest.mark.parametrize("path", ["/files", "/upload/"])
@pytest.mark.parametrize("header", [None, "Bearer", "Basic {token}", "Bearer {token}x"])
def test_an_upload_without_the_token_is_refused(repository: Repository, path: str, header: str | None) -> None:
    token = repository.headers["Authorization"].removeprefix("Bearer ")
    headers = {} if header is None else {"Authorization": header.format(token=token)}

    answer = requests.post(repository.url + path, data=b"stranger's", headers=headers, timeout=60)

    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert hashlib.sha256(b"stranger's").hexdigest() not in repository.stored()


def test_a_file_over_the_cap_is_refused_while_it_streams_and_leaves_nothing(repository: Repository) -> None:
    before = repository.on_disk()
    exact = requests.post(f"{repository.url}/files", data=b"x" * MIB, headers=repository.headers, timeout=60)
    announced = requests.post(f"{repository.url}/files", data=b"x" * (MIB + 1), headers=repository.headers, timeout=60)
    streamed = _streamed(repository, "/files", {}, size_bytes=MIB + 1)
    multipart = {"Content-Type": "multipart/form-data; boundary=b"}
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="plan"\r\n\r\n'
    in_form = _streamed(repository, "/upload/", multipart, size_bytes=2 * MIB, head=head)
    endless_field = _streamed(
        repository, "/upload/", multipart, size_bytes=3 * MIB, head=head.replace(b"file", b"no", 1)
    )

    assert (exact.status_code, announced.status_code) == (201, 413)
    assert (streamed, in_form, endless_field) == (413, 413, 413)
    new = f"sha256/{exact.json()['sha256']}"
    wait_until(lambda: set(repository.on_disk()) - set(before) == {new}, what="nothing but the stored file")


def test_an_upload_that_cannot_be_written_is_refused(repository: Repository) -> None:
    aside = (repository.folder / "incoming").rename(repository.folder / "aside")

    with pytest.raises(RepositoryError, match=r"507 .*the repository cannot write: No such file or directory"):
        upload(b"another plan", repository.settings)

    aside.rename(repository.folder / "incoming")


def test_an_upload_that_breaks_off_leaves_nothing(repository: Repository) -> None:
    before = repository.on_disk()
    with socket.create_connection(("127.0.0.1", repository.port), timeout=60) as connection:
        head = f"POST /files HTTP/1.1\r\nHost: x\r\nAuthorization: {repository.headers['Authorization']}\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\nonly this".encode())
    # The next request is answered after the broken one was noticed, or at the same time; its file is the only new one.
    upload(b"after the break", repository.settings)

    kept = [name for name in repository.on_disk() if not name.startswith("incoming/")]
    assert set(kept) - set(before) == {f"sha256/{hashlib.sha256(b'after the break').hexdigest()}"}


SLOW_DISK = """
import os, sys, threading
from fedmon.broker import repository
from fedmon.cli import main
sync, slow_s = os.fsync, iter([3.0])
os.fsync = lambda descriptor: (threading.Event().wait(next(slow_s, 0.0)), sync(descriptor))
repository.UPLOAD_S = 2.0
main(sys.argv[1:])
"""


def test_a_slow_client_is_sent_away_and_on_a_slow_disk_a_whole_upload_is_stored(tmp_path: Path) -> None:
    program, small = [sys.executable, "-c", SLOW_DISK], ("--max-file-mib", "1")
    with foreground(
        "repository", "start", "--port", "0", "--data-dir", tmp_path, "--open-uploads", *small, program=program
    ) as running:
        url = running.facts["url"]
        whole = requests.post(f"{url}/files", data=CONTENT, timeout=60)
        with asked(url, "POST", "/files", {"Content-Length": str(len(CONTENT))}, CONTENT[:100]) as answer:
            late = answer.status
        held = requests.get(f"{url}/health", timeout=60).json()

    assert (whole.status_code, late) == (201, 408)
    assert held == {"status": "ok", "files": 1, "bytes": len(CONTENT)}


STOPPED = """
import os, signal, sys, uvicorn
from fedmon.cli import main
begin = uvicorn.Server.startup
async def stopped(self, sockets=None):
    os.kill(os.getpid(), signal.SIGTERM)
    await begin(self, sockets)
uvicorn.Server.startup = stopped
main(["broker", "repository", "start", "--port", "0", "--open-uploads", "--data-dir", sys.argv[1]])
"""


def test_a_repository_that_is_stopped_as_it_starts_is_not_announced(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED, tmp_path], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_upload_may_take_as_long_as_a_node_tries() -> None:
    assert UPLOAD_S >= outcome._TRANSFER_S


@pytest.mark.parametrize(
    "path",
    [
        "/files/../repository-token",
        "/files/..%2f..%2fsecrets%2frepository-token",
        "/files/%2e%2e/%2e%2e/secrets/repository-token",
        "/files/" + "0" * 63,
        "/files/" + "A" * 64,
        "/files/" + "0" * 64 + "%00",
        "/files/" + "x" * 5000,
        "/sha256/" + DIGEST,
        "/files/",
        "//etc/passwd",
    ],
)
def test_no_path_of_a_client_reaches_the_disk(repository: Repository, path: str) -> None:
    incoming = repository.folder / "incoming"
    wait_until(lambda: not list(incoming.iterdir()), what="the end of uploads of other tests that broke off")
    before = repository.on_disk()

    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        with asked(repository.url, method, path, repository.headers | {"Content-Length": "0"}) as answer:
            assert answer.status in (400, 404, 405, 307), (method, answer.status)
            assert b"root:" not in answer.read()
    assert repository.on_disk() == before


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--b\r\n\r\n"),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"no boundary here"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
        ),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\ncut off'),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n1\r\n' * 2 + b"--b--\r\n",
        ),
        ("multipart/form-data; boundary=" + "b" * 300, b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"X: y\r\n" * 1000 + b"\r\nx\r\n--b--\r\n"),
    ],
)
def test_a_form_that_is_none_is_refused_with_a_reason(repository: Repository, content_type: str, body: bytes) -> None:
    answer = requests.post(
        f"{repository.url}/upload/", data=body, headers={**repository.headers, "Content-Type": content_type}, timeout=60
    )

    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_compressed_upload_is_refused(repository: Repository) -> None:
    headers = {**repository.headers, "Content-Encoding": "gzip"}

    assert requests.post(f"{repository.url}/files", data=b"x", headers=headers, timeout=60).status_code == 415


def test_a_download_says_what_it_is_and_gives_parts(repository: Repository) -> None:
    url = upload(CONTENT, repository.settings)

    whole = requests.get(url, timeout=60)
    head = requests.head(url, timeout=60)
    part = requests.get(url, headers={"Range": "bytes=6-9"}, timeout=60)

    assert whole.headers["ETag"] == f'"{DIGEST}"'
    assert whole.headers["Content-Length"] == head.headers["Content-Length"] == str(len(CONTENT))
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    assert whole.headers["Content-Type"] == "application/octet-stream"
    assert (part.status_code, part.content) == (206, CONTENT[6:10])
    assert requests.get(f"{repository.url}/files/{'0' * 64}", timeout=60).status_code == 404


def test_the_host_header_does_not_shape_the_answer(repository: Repository) -> None:
    headers = {**repository.headers, "Host": "evil.example"}

    answer = requests.post(f"{repository.url}/files", data=CONTENT, headers=headers, timeout=60)

    assert answer.json()["url"].startswith(repository.url)


def test_by_the_readme_a_file_is_stored_and_fetched_over_tls(
    tls_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_file = tls_repository.folder.parent / "certificates" / "ca.crt"
    asked: dict[str, Any] = {"max_bytes": MIB, "deadline_s": 10.0, "allowed_urls": [tls_repository.url]}

    with monkeypatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(ca_file))
        url = upload(CONTENT, tls_repository.settings)
        content = download(url, sha256=DIGEST, **asked)
    with pytest.raises(RepositoryError, match=r"its certificate is not trusted: .*; name .* SSL_CERT_FILE$"):
        download(url, sha256=DIGEST, **asked)
    old = ssl.create_default_context(cafile=ca_file)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", tls_repository.port)) as line, pytest.raises(ssl.SSLError):
        old.wrap_socket(line, server_hostname="localhost")

    assert url.startswith(f"https://localhost:{tls_repository.port}/files/")
    assert content == (tls_repository.folder / "sha256" / DIGEST).read_bytes() == CONTENT


def test_each_party_has_a_token_and_a_quota_that_a_restart_keeps(tmp_path: Path) -> None:
    arguments = ("repository", "start", "--port", "0", "--data-dir", tmp_path / "files", "--max-party-mib", "1")
    files = {}
    for party in ("alice", "bob"):
        files[party] = tmp_path / f"{party}.token"
        answer("repository", "token", "add", party, "--data-dir", tmp_path, "--save", files[party])

    with foreground(*arguments) as running:
        url: str = running.facts["url"]
        alice, bob = (RepositorySettings(url=url, token_file=files[party]) for party in ("alice", "bob"))
        upload(bytes(700_000), alice)
        upload(bytes(700_000), bob)
        with pytest.raises(RepositoryError, match=r"507.*the quota of alice is full: 1048576 bytes"):
            upload(b"x" * 700_000, alice)
        upload(b"x" * 300_000, alice)
        stored = requests.get(f"{url}/health", timeout=60).json()
    with foreground(*arguments) as running:
        url = running.facts["url"]
        alice, bob = (RepositorySettings(url=url, token_file=files[party]) for party in ("alice", "bob"))
        with pytest.raises(RepositoryError, match=r"507.*the quota of alice is full"):
            upload(b"y" * 300_000, alice)
        upload(b"y" * 300_000, bob)
        answer("repository", "token", "remove", "bob", "--data-dir", tmp_path)
        with pytest.raises(RepositoryError, match="401"):
            upload(b"z", bob)

    assert stored == {"status": "ok", "files": 2, "bytes": 1_000_000}
    assert running.facts["token_file"] is None
    assert answer("repository", "token", "list", "--data-dir", tmp_path)["parties"] == ["alice"]
    assert files["alice"].read_text().strip() not in (tmp_path / "secrets" / "repository-tokens").read_text()
    assert (tmp_path / "secrets" / "repository-tokens").stat().st_mode & 0o777 == 0o600


def test_a_named_token_file_is_made_in_a_production_folder_unless_a_party_has_a_token(tmp_path: Path) -> None:
    answer("config", "write", tmp_path)
    start = ("repository", "start", "--port", "0", "--data-dir", tmp_path / "files")

    with foreground(*start) as unnamed:
        pass
    with foreground(*start, "--token-file", tmp_path / "shared") as running:
        url = upload(CONTENT, RepositorySettings(url=running.facts["url"], token_file=tmp_path / "shared"))
    answer("repository", "token", "add", "alice", "--data-dir", tmp_path)
    with foreground(*start, "--token-file", tmp_path / "other") as later:
        pass

    assert url.endswith(DIGEST)
    assert running.facts["token_file"] == str(tmp_path / "shared")
    assert (unnamed.facts["token_file"], later.facts["token_file"]) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("add", "alice"), 4, "--replace"),
        (("add", "a/b"), 2, "letters, digits"),
        (("remove", "bob"), 3, "token list"),
    ],
)
def test_a_token_that_cannot_be_made_or_removed_is_refused(
    arguments: tuple[str, str], code: int, reason: str, tmp_path: Path
) -> None:
    before = answer("repository", "token", "add", "alice", "--data-dir", tmp_path)

    finished = fedmon_broker("repository", "token", *arguments, "--data-dir", tmp_path)
    replaced = answer("repository", "token", "add", "alice", "--replace", "--data-dir", tmp_path)

    assert (finished.returncode, reason in finished.stderr) == (code, True)
    assert before["token"] != replaced["token"]


def test_open_uploads_need_no_token_on_loopback_and_none_is_asked_for(tmp_path: Path) -> None:
    command = [*FEDMON, "repository", "start", "--port", "0", "--data-dir", str(tmp_path), "--open-uploads"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            following = next(line for line in running.stdout if line.startswith("next: "))
            base = following.split('"')[1]
            url = upload(CONTENT, RepositorySettings(url=f"{base}/upload/"))
        finally:
            running.terminate()

    assert url.endswith(DIGEST)
    assert following == f'next: in researcher.toml, [repository] url = "{base}"\n'


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--host", "0.0.0.0"], 4, "--certificate and --key"),
        (["--host", "0.0.0.0", "--open-uploads", "--certificate", "a", "--key", "b"], 4, "no --open-uploads"),
        (["--certificate", "a"], 2, "go together"),
        (["--certificate", "missing.crt", "--key", "missing.key"], 1, "missing.crt"),
    ],
)
def test_what_is_unsafe_or_wrong_is_refused(arguments: list[str], code: int, reason: str, tmp_path: Path) -> None:
    finished = fedmon_here(
        "broker", "repository", "start", "--port", "0", "--data-dir", str(tmp_path / "files"), *arguments
    )

    assert (finished.returncode, finished.stdout) == (code, "")
    assert reason in finished.stderr


def test_without_its_packages_it_names_the_extra_that_brings_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "fedmon.broker.repository", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    finished = fedmon_here("broker", "repository", "start", "--port", "0", "--data-dir", str(tmp_path / "files"))

    assert (finished.returncode, "install fedmon with its extra [broker]" in finished.stderr) == (3, True)


def test_a_request_that_is_not_completed_ends(half_sent: dict[str, socket.socket]) -> None:
    def all_closed() -> bool:
        # A byte from time to time does not complete it.
        with contextlib.suppress(OSError):
            half_sent["half a body"].send(b".")
        return _closed(half_sent) == set(half_sent)

    wait_until(all_closed, what="every connection cut")


def test_a_download_that_nobody_reads_is_cut(tmp_path: Path) -> None:
    content = bytes(8 * MIB)  # more than the system takes for the client
    with foreground("repository", "start", "--port", "0", "--data-dir", tmp_path, "--open-uploads") as running:
        url = requests.post(f"{running.facts['url']}/files", data=content, timeout=60).json()["url"]
        server = psutil.Process(running.process.pid)

        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect(("127.0.0.1", int(running.facts["url"].rpartition(":")[2])))
            idle.sendall(f"GET /files/{url.rpartition('/')[2]} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert idle.recv(9) == b"HTTP/1.1 "
            idle.sendall(b"G")  # the first byte of another request
            address = idle.getsockname()
            wait_until(lambda: address not in {each.raddr for each in server.net_connections()}, what="the cut")

        assert requests.get(url, timeout=60).content == content


def _closed(connections: dict[str, socket.socket]) -> set[str]:
    """Return which of the connections the other side has ended."""
    closed = set()
    for what, connection in connections.items():
        connection.setblocking(False)
        try:
            if connection.recv(1000, socket.MSG_PEEK) == b"":
                closed.add(what)
        except BlockingIOError:
            pass
        except OSError:
            closed.add(what)
    return closed


def _streamed(repository: Repository, path: str, headers: dict[str, str], *, size_bytes: int, head: bytes = b"") -> int:
    """Send a body of unannounced length until the server answers; returns the status."""
    pieces = (head, *[b"x" * 65_536] * (size_bytes // 65_536), b"x" * (size_bytes % 65_536))
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece]
    given = {**repository.headers, **headers, "Transfer-Encoding": "chunked"}
    with asked(repository.url, "POST", path, given, *chunks, b"0\r\n\r\n") as answer:
        return answer.status
