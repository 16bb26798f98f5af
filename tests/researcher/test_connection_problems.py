"""Problems of the connection: one error within the stated timeout that names host, port and cause."""

from __future__ import annotations

import itertools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from fedmon.common.errors import ConnectionFailedError, FedmonError, NotConnectedError
from fedmon.common.settings.broker import broker_from_url
from fedmon.common.settings.values import ResearcherSettings
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.federation import Federation
from fedmon.researcher.requests import Requests
from tests.researcher.conftest import Open
from tests.support.brokers import Broker, answering
from tests.support.echo_node import EchoNode
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.stubborn import broker_that_gives_connections_away, greeter, silent_peer
from tests.support.waiting import wait_until

TIMEOUT_S = 2.0


def failure(url: str, folder: Path, **options: object) -> tuple[FedmonError, float, float]:
    """Return the error of opening a federation, how long it took, and how much CPU time."""
    started, cpu = time.monotonic(), time.process_time()
    with pytest.raises(FedmonError) as caught:
        # It keeps no queue on the disk, which may be slow.
        Federation(url, folder=folder, timeout_s=TIMEOUT_S, instance="other", **options).start()  # type: ignore[arg-type] # a test's
    return caught.value, time.monotonic() - started, time.process_time() - cpu


@pytest.mark.parametrize(
    ("scheme", "peer", "cause"),
    [
        ("mqtt", "closed port", "refused"),
        ("mqtt", "[::1]:1", "refused|ddress|unreachable"),  # also on a machine without IPv6
        ("mqtt", "no-such-host.invalid:1883", "cannot be resolved"),
        ("mqtt", "silent peer", "did not speak MQTT|no answer within 2 s"),
        ("mqtts", "mosquitto", "TLS"),
    ],
)
def test_host_port_and_cause_are_named_in_time(
    mosquitto: Broker, tmp_path: Path, scheme: str, peer: str, cause: str
) -> None:
    with silent_peer() as silent:
        ports = {"closed port": free_port(), "silent peer": silent, "mosquitto": mosquitto.port}
        place = f"127.0.0.1:{ports[peer]}" if peer in ports else peer
        error, took_s, cpu_s = failure(f"{scheme}://{place}", tmp_path)

    assert isinstance(error, ConnectionFailedError)
    assert place in str(error)
    assert re.search(cause, str(error))
    assert "\n" not in str(error)
    assert took_s < TIMEOUT_S + 5
    assert cpu_s < TIMEOUT_S / 2


def test_a_refused_subscription_names_access_list_and_limits(tmp_path: Path) -> None:
    let_in_and_refused = b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x80"
    with greeter(let_in_and_refused) as port:
        error, *_ = failure(f"mqtt://127.0.0.1:{port}", tmp_path)

    assert "refused our subscription" in str(error)
    assert "access list" in str(error)
    assert "max_consumers" in str(error)


def test_a_failed_start_leaves_no_thread_behind_and_can_be_repeated(mosquitto: Broker, tmp_path: Path) -> None:
    mosquitto.stop()
    before = set(threading.enumerate())
    federation = Federation(mosquitto.url, folder=tmp_path, timeout_s=0.5)
    with pytest.raises(ConnectionFailedError):
        federation.start()
    wait_until(lambda: set(threading.enumerate()) <= before)

    mosquitto.start()
    federation._timeout_s = 60.0  # the second start has time enough
    with federation, EchoNode(mosquitto.port, "a"):
        wait_until(lambda: federation.ping().ok)


def test_a_closed_federation_leaves_no_thread_and_no_socket_behind(mosquitto: Broker, tmp_path: Path) -> None:
    process, before = psutil.Process(), set(threading.enumerate())
    with Federation(mosquitto.url, folder=tmp_path) as federation:
        federation.ping(timeout_s=0.1)

    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("fedmon-")]
    wait_until(lambda: not [one for one in process.net_connections() if mosquitto.port in one.raddr])


def test_two_processes_with_one_client_id_are_told_why_and_recover_when_one_ends(
    mosquitto: Broker, federate: Open
) -> None:
    with EchoNode(mosquitto.port, "a"):
        first = federate(instance="twin")
        second = federate(instance="twin")
        wait_until(lambda: "another client uses our client id" in first.status().last_error, what="the cause")
        with pytest.raises(NotConnectedError, match="connections in a row ended within 2 s"):
            first.ping(nodes=["nobody"], timeout_s=0.1)
        second.close()

        wait_until(lambda: answering(first), what="an answer")
        wait_until(lambda: not first.status().last_error, what="no error")


def test_a_broker_that_says_so_makes_it_sure_that_another_client_has_the_id(tmp_path: Path) -> None:
    with broker_that_gives_connections_away() as (port, _):
        broker = broker_from_url(f"mqtt://127.0.0.1:{port}", mqtt_version="5")
        with Federation(
            settings=ResearcherSettings(id="alice", broker=broker, folder=tmp_path / "alice")
        ) as federation:
            wait_until(lambda: "in a row" in federation.status().last_error, what="the cause")
            with pytest.raises(NotConnectedError, match=r"Session taken over\)\): another client uses our client id"):
                federation.ping(timeout_s=0.1)


@pytest.mark.soak
@pytest.mark.parametrize(("last_packet", "is_sure"), [(b"\xe0\x01\x8e", True), (b"", False)])
def test_back_off_passes_four_seconds_only_while_another_client_surely_has_the_id(
    tmp_path: Path, last_packet: bytes, *, is_sure: bool
) -> None:
    with broker_that_gives_connections_away(last_packet=last_packet) as (port, came):
        broker = broker_from_url(f"mqtt://127.0.0.1:{port}", mqtt_version="5")
        with Federation(settings=ResearcherSettings(id="alice", broker=broker, folder=tmp_path / "alice")):
            wait_until(lambda: len(came) > 3 and came[-1] - came[0] > 15, what="enough attempts")

    longest_s = max(after - before for before, after in itertools.pairwise(came))
    assert (longest_s > 4) == is_sure
    assert longest_s < 62


def test_calls_say_that_connections_keep_getting_lost_and_work_again_when_one_lasts(
    mosquitto: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(mosquitto.port) as link, EchoNode(mosquitto.port, "a"):
        alice = Federation(link.url, researcher_id="alice", folder=tmp_path / "alice", timeout_s=30.0)
        with alice as federation, Requests(federation) as requests:
            federation.session.asker.timeout_s = 1.0

            def is_reported_after_a_cut() -> bool:
                link.heal()
                wait_until(lambda: federation.status().connected)
                link.cut()
                wait_until(lambda: not federation.status().connected)
                return "in a row" in federation.status().last_error

            wait_until(is_reported_after_a_cut, what="the report")
            started = time.monotonic()
            for call in (lambda: federation.ping(timeout_s=0.5), federation.nodes):
                with pytest.raises(NotConnectedError, match=r"([3-9]|\d\d) connections in a row ended within 2 s"):
                    call()
            took_s = time.monotonic() - started
            caplog.clear()
            listed = requests.list(nodes=["a"])
            logged = caplog.text
            link.heal()
            wait_until(lambda: answering(federation), what="an answer")
            federation.session.asker.timeout_s = 30.0
            answered = requests.ping_nodes()

    assert took_s < 5.0
    assert listed == {}
    assert "connections in a row ended within 2 s" in logged
    assert answered == ["a"]


def test_a_request_while_the_broker_is_gone_ends_at_its_timeout_with_the_cause(
    mosquitto: Broker, federate: Open
) -> None:
    with EchoNode(mosquitto.port, "a"):
        federation = federate()
        with EchoNode(mosquitto.port, "gone"):
            wait_until(lambda: len(federation.ping().ok) == 2)
        wait_until(lambda: federation.nodes().online == ["a"])
        mosquitto.kill()
        wait_until(lambda: not federation.status().connected)
        with pytest.raises(NotConnectedError):
            federation.forget("gone")

        started, cpu = time.monotonic(), time.process_time()
        with pytest.raises(NotConnectedError) as caught:
            federation.ping(timeout_s=1.0)

    assert 0.9 < time.monotonic() - started < 6
    assert time.process_time() - cpu < 0.5
    assert f"127.0.0.1:{mosquitto.port}" in str(caught.value)
    assert federation.nodes().circumstances.connected is False


def test_a_request_that_waits_through_a_broker_restart_is_asked_again_and_answered(
    mosquitto: Broker, federate: Open
) -> None:
    first = EchoNode(mosquitto.port, "a", boot=1).start()
    federation = federate("a", timeout_s=60)
    first.answer = lambda _: None
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(federation.datasets)
        first.wait(lambda: first.sent("list"))
        mosquitto.kill()
        first.stop()
        mosquitto.start()
        with EchoNode(mosquitto.port, "a", boot=2) as second:
            answered = asked.result(60)

    assert list(answered.ok) == ["a"]
    assert second.sent("list")[0]["id"] == first.sent("list")[0]["id"]


@pytest.mark.soak
def test_a_line_that_goes_dead_is_noticed_and_one_that_heals_is_used_within_five_seconds(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with Proxy(mosquitto.port) as line, EchoNode(mosquitto.port, "a"):
        broker = broker_from_url(line.url, keepalive_s=5, connect_timeout_s=1.0)
        settings = ResearcherSettings(id="alice", broker=broker, folder=tmp_path / "alice")
        with Federation(settings=settings) as federation:
            assert federation.ping().ok
            line.freeze()

            outcomes = federation.ping(timeout_s=0.5)
            wait_until(lambda: not federation.status().connected)
            line.heal()
            started = time.monotonic()
            wait_until(lambda: federation.status().connected and federation.ping(timeout_s=1.0).ok)

    assert outcomes["a"].status is OutcomeStatus.TIMED_OUT
    assert time.monotonic() - started < 5
