"""There is one `Requests` in a process, and processes of one researcher do not fight over its id."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmon.common.errors import ConnectionFailedError
from fedmon.researcher.federation import Federation
from fedmon.researcher.requests import Requests
from tests.researcher.historic.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.environment import researcher_environment
from tests.support.ports import free_port

FORKED = """
import os, sys
from fedmon.researcher.requests import Requests
requests = Requests()
if os.fork() == 0:
    print(*Requests().ping_nodes(), flush=True)
    os._exit(0)
os.wait()
print(requests is Requests(), *requests.ping_nodes())
"""


def test_it_is_the_same_object_however_often_it_is_made_until_it_is_closed(open_requests: Open) -> None:
    first = open_requests()

    with ThreadPoolExecutor(8) as pool:
        made = [each.result(60) for each in [pool.submit(Requests) for _ in range(8)]]
    first.close()
    second = open_requests()

    assert [first] * 8 == made
    assert second is not first
    first.close()
    assert Requests() is second


def test_a_failed_construction_leaves_room_for_the_next(open_requests: Open, tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailedError):
        Requests(Federation(f"mqtt://127.0.0.1:{free_port()}", folder=tmp_path / "alice", timeout_s=0.5))

    assert open_requests().messaging.is_connected()


def test_closing_ends_the_connection_that_it_made_itself(
    mosquitto: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_BROKER_URL", mosquitto.url)
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "alice"))
    for _ in range(2):
        requests = Requests()
        messaging = requests.messaging
        assert messaging.is_connected()
        requests.close()
        assert not messaging.is_connected()


def test_a_fork_makes_an_object_of_its_own(mosquitto: Broker, tmp_path: Path) -> None:
    environ = researcher_environment(mosquitto.url, tmp_path / "alice")
    with EchoNode(mosquitto.port, "a"):
        done = subprocess.run(
            [sys.executable, "-c", FORKED], env=environ, capture_output=True, text=True, timeout=60, check=True
        )

    assert done.stdout.splitlines() == ["a", "True a"]
