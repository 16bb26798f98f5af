"""Handing a training plan in: what fits goes in the message, the rest through the repository."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.researcher.asking.submission import submission
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode

NONE = RepositorySettings()


class Store(HTTPServer):
    """A repository of the historic form, which keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Upload)
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/upload/"


class _Upload(BaseHTTPRequestHandler):
    server: Store

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"file": f"{self.server.url}stored.py"}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def plan_of(size: int, tmp_path: Path, character: str = "x") -> Path:
    path = tmp_path / "plan.py"
    path.write_text("# " + character * size + "\n")
    return path


def test_what_grows_on_the_wire_counts_as_it_grows(tmp_path: Path) -> None:
    control = plan_of(MAX_PAYLOAD_BYTES // 5, tmp_path, "\x01")

    with pytest.raises(InvalidInputError, match="does not fit into a message"):
        submission(control, description="", repository=NONE)


def test_a_description_that_no_node_would_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="16384 are allowed"):
        submission(plan_of(1, tmp_path), description="x" * 16_385, repository=NONE)


def test_a_large_plan_goes_through_the_repository_and_its_digest_in_the_message(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plan_of(MAX_PAYLOAD_BYTES, tmp_path)
    monkeypatch.setenv("FEDMON_REPOSITORY_URL", store.url)
    with EchoNode(mosquitto.port, "a") as node:
        outcomes = federate().approve(path)

    request = node.sent("approval")[0]
    assert outcomes["a"].ok
    assert (request["url"], request["source"]) == (f"{store.url}stored.py", None)
    assert request["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.read_bytes() in store.bodies[0]


def test_a_repository_that_is_not_there_is_one_error_and_nothing_is_asked(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_REPOSITORY_URL", "http://127.0.0.1:9/upload/")
    with EchoNode(mosquitto.port, "a") as node:
        federation = federate()

        with pytest.raises(FedmonError, match=r"127\.0\.0\.1:9"):
            federation.approve(plan_of(MAX_PAYLOAD_BYTES, tmp_path))

    assert node.sent("approval") == []
