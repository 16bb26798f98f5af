"""`Messaging`: the historic face of the connection of a `Requests`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.common.store.queue import TasksQueueError
from fedmon.researcher.federation import Federation
from fedmon.researcher.requests import Requests
from tests.researcher.historic.conftest import Open
from tests.support.brokers import Broker


def test_start_can_block_until_stop_after_which_a_new_object_is_made(open_requests: Open) -> None:
    messaging = open_requests().get_messaging()
    blocked = threading.Thread(target=messaging.start, kwargs={"block": True})
    blocked.start()
    messaging.start()
    alive = blocked.is_alive()

    messaging.stop()
    messaging.stop()
    blocked.join(60)

    assert alive
    assert not blocked.is_alive()
    assert not messaging.is_connected()
    with pytest.raises(InvalidInputError, match=r"make a new Requests\(\)"):
        messaging.start()


def test_a_connection_whose_federation_was_closed_stays_stopped_when_that_is_started_again(
    open_requests: Open, caplog: pytest.LogCaptureFixture
) -> None:
    requests = open_requests()
    messaging = requests.get_messaging()
    messaging.federation.close()
    messaging.federation.start()

    sent = requests.send_message({"command": "ping", "researcher_id": "alice"}, add_sequence=True)

    assert (sent, messaging.is_connected()) == (None, False)
    assert "ping was not sent: the connection was stopped: close this Requests" in caplog.text
    with pytest.raises(InvalidInputError, match=r"make a new Requests\(\)"):
        messaging.start()
    with pytest.raises(TasksQueueError, match="closed"):
        requests.queue.add({"command": "pong"})


def test_a_researcher_sends_no_errors_and_says_so(open_requests: Open, caplog: pytest.LogCaptureFixture) -> None:
    open_requests().get_messaging().send_error("FB300", extra_msg="boom", researcher_id="bob")

    assert "a researcher sends no errors; not sent to bob: FB300 boom" in caplog.text


def test_what_is_no_connection_is_ignored_as_ever_but_not_in_silence(
    mosquitto: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "alice"))
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    monkeypatch.setenv("MQTT_BROKER_PORT", str(mosquitto.port))
    monkeypatch.setenv("RESEARCHER_ID", "alice")

    with Requests("anything") as requests:
        connected, federation = requests.messaging.is_connected(), requests.messaging.federation

    assert connected
    assert isinstance(federation, Federation)
    assert federation.researcher_id == "alice"
    assert "mess is ignored: a str is no Federation; try Requests(Federation(url))" in caplog.text
    assert logging.getLogger("fedmon").handlers == []
