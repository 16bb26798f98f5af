"""The kept connection, against brokers that no broker program would be."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import ssl
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.errors import ConnectionFailedError, InvalidMessageError
from fedmon.common.settings.broker import BrokerHost, BrokerSettings, broker_from_url
from fedmon.common.wire.connection import MAX_PACKET_BYTES, BrokerConnection
from tests.broker.certificates import make_broker_certificate, make_client_authority
from tests.support.brokers import Broker
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.stubborn import broker_that_gives_connections_away, full_peer, greeter, peer
from tests.support.waiting import wait_until


def made(
    broker: BrokerSettings,
    subscriptions: Sequence[tuple[str, int]] = (),
    on_message: Callable[[str, bytes, bool], None] = lambda _topic, _payload, _retained: None,
    **options: Any,
) -> BrokerConnection:
    return BrokerConnection(broker, client_id="north", subscriptions=subscriptions, on_message=on_message, **options)


@contextlib.contextmanager
def started(connection: BrokerConnection) -> Iterator[BrokerConnection]:
    connection.start()
    try:
        yield connection
    finally:
        connection.stop()


def first_failure(broker: BrokerSettings) -> ConnectionFailedError:
    """Try to connect until that has failed, and return why."""
    with started(made(broker)) as connection:
        wait_until(lambda: connection.last_error is not None, what="a failure")
    assert connection.last_error is not None
    return connection.last_error


CHECK = "check user name, password file, and the port of this role"


@pytest.mark.parametrize(
    ("code", "user", "cause"),
    [
        (2, "", "it refused the connection (Client identifier not valid)"),
        (3, "", "it refused the connection (Server unavailable)"),
        (4, "anna@", f"it refused user 'anna' (Bad user name or password); {CHECK}"),
        (5, "", f"it refused a client without a user name (Not authorized); {CHECK}"),
    ],
)
def test_a_broker_that_lets_nobody_in_is_told_with_its_reason_and_what_to_check(
    code: int, user: str, cause: str
) -> None:
    with greeter(b"\x20\x02\x00" + bytes([code])) as port:  # CONNACK
        failure = first_failure(broker_from_url(f"mqtt://{user}127.0.0.1:{port}"))

    assert failure.cause == cause


def test_a_later_subscription_that_is_refused_costs_its_own_messages_alone(caplog: pytest.LogCaptureFixture) -> None:
    answers = b"\x20\x02\x00\x00" + b"\x90\x04\x00\x01\x00\x80"  # CONNACK, SUBACK
    with greeter(answers) as port:
        connection = made(broker_from_url(f"mqtt://127.0.0.1:{port}"), [("always", 0)])
        connection.resubscribe([("always", 0), ("later", 0)])
        with started(connection):
            wait_until(lambda: connection.is_connected)

    assert "it refused our subscription to later; ask its operator to check the access list" in caplog.text


def test_a_port_that_breaks_off_or_has_a_strange_certificate_is_told_with_what_to_mend(tmp_path: Path) -> None:
    make_client_authority(tmp_path, "strange")
    certificate, key = tmp_path / "strange-ca.crt", tmp_path / "strange-ca.key"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def break_off(client: socket.socket) -> None:
        client.recv(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets it
        client.close()

    def encrypt(client: socket.socket) -> None:
        context.wrap_socket(client, server_side=True).close()

    def alert(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b"\x15\x03\x01\x00\x02\x02\x46")  # protocol_version, RFC 8446, section 6

    with peer(break_off) as port:
        broken_off = [first_failure(broker_from_url(f"{tls}://127.0.0.1:{port}")).cause for tls in ("mqtts", "mqtt")]
    with peer(alert) as port:
        told_by_tls = first_failure(broker_from_url(f"mqtt://127.0.0.1:{port}")).cause
    with peer(encrypt) as port:
        url = f"mqtts://127.0.0.1:{port}"
        untrusted = first_failure(broker_from_url(url)).cause
        known = broker_from_url(url, ca_file=certificate)
        of_another_host = [
            first_failure(broker).cause
            for broker in (known, msgspec.structs.replace(known, cert_file=certificate, key_file=key))
        ]
        make_broker_certificate(tmp_path)
        certificates = tmp_path / "certificates"
        context.load_cert_chain(certificates / "broker.crt", certificates / "broker.key")
        shut_out = first_failure(broker_from_url(url, ca_file=certificates / "ca.crt")).cause

    advice = "it broke off the connection; does this port speak TLS (mqtts://), or not (mqtt://), as the URL says?"
    assert broken_off == [advice] * 2
    assert told_by_tls == f"{advice} (Protocol error)"
    assert shut_out.endswith("after the start of TLS; does it ask for a cert_file, or refuse yours?")
    assert re.fullmatch(r"its certificate is not trusted: self.*; name the right ca_file", untrusted)
    for cause in of_another_host:
        assert re.fullmatch(
            r"its certificate is not trusted: IP address mismatch.*'; it must be .* for the host of the URL", cause
        )


@pytest.mark.parametrize(
    ("url", "option", "cause"),
    [
        ("mqtt://a..b", "", "'a..b' is not a host name"),
        ("mqtt://anna@127.0.0.1", "password_file", "cannot read password file {file}: No such file or directory"),
        ("mqtts://127.0.0.1", "ca_file", "cannot use certificate file {file}: No such file or directory"),
        ("mqtts://127.0.0.1", "cert_file", "cannot use certificate file {file} with key file {file}: No such file"),
    ],
)
def test_a_host_or_file_that_cannot_be_used_is_named(url: str, option: str, cause: str, tmp_path: Path) -> None:
    file = tmp_path / "gone"

    failure = first_failure(broker_from_url(url, **{option: file} if option else {}))

    assert failure.cause.startswith(cause.format(file=file))


def test_a_port_without_tls_and_one_that_does_not_answer_are_told_apart() -> None:
    with greeter(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        without_tls = first_failure(broker_from_url(f"mqtts://127.0.0.1:{port}")).cause
    with full_peer() as port:
        silent = first_failure(broker_from_url(f"mqtt://127.0.0.1:{port}", connect_timeout_s=0.3))

    # Versions of OpenSSL name it differently.
    assert re.fullmatch(r"TLS failed: [A-Z_]+; is this a TLS port\?", without_tls)
    assert silent.cause == "no answer within 0.3 s; a firewall may be in the way"


def test_callbacks_that_fail_cost_no_message_and_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    taken = list[bytes]()

    def take(_topic: str, payload: bytes, _retained: bool) -> None:  # the connection's shape
        taken.append(payload)
        raise KeyError(payload)

    def fail(host: BrokerHost | None) -> None:
        raise KeyError(host)

    granted = b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x00"  # CONNACK, SUBACK
    sent = b"\x30\x04\x00\x01a1" + b"\x30\x04\x00\x01a2"  # PUBLISH
    with greeter(granted + sent) as port:
        connection = made(broker_from_url(f"mqtt://127.0.0.1:{port}"), [("a", 0)], take, on_link=fail)
        with started(connection):
            wait_until(lambda: taken == [b"1", b"2"], what="both messages")
            wait_until(lambda: "the link callback failed" in caplog.text, what="the call of the link callback")

            assert connection.is_connected


def cluster_that_is_down() -> BrokerSettings:
    return broker_from_url(f"mqtt://127.0.0.1:{free_port()},127.0.0.1:{free_port()}")


def test_a_broker_that_is_down_is_tried_every_half_second_and_one_that_keeps_us_out_more_and_more_seldom() -> None:
    tried, rotated, refused, boots = list[float](), list[BrokerHost | None](), list[float](), list[None]()

    def refuse(client: socket.socket) -> None:
        refused.append(time.monotonic())
        client.sendall(b"\x20\x02\x00\x05")  # CONNACK

    def local(port: int, version: str = "3.1.1") -> BrokerSettings:
        return broker_from_url(f"mqtt://127.0.0.1:{port}", mqtt_version=version)

    with broker_that_gives_connections_away(last_packet=b"") as (losing, lost), peer(refuse) as refusing:
        down = made(
            local(free_port()), on_link=lambda _: tried.append(time.monotonic()), will=lambda: boots.append(None)
        )
        cluster = made(cluster_that_is_down(), on_link=rotated.append)
        thrown_out = made(local(losing, "5"), [("a", 0)])
        with started(down), started(cluster), started(thrown_out), started(made(local(refusing))):
            wait_until(lambda: min(map(len, (tried, refused, lost))) > 8, what="enough attempts")

    to_down, to_refusing, to_losing = (
        [after - before for before, after in itertools.pairwise(each[:9])] for each in (tried, refused, lost)
    )
    assert statistics.median(to_down) < 0.75
    assert len(rotated) > 1.3 * len(tried)
    assert statistics.median(to_losing[:2]) < 0.75 < min(max(to_refusing), max(to_losing))
    assert not boots


def test_a_broker_that_stays_down_is_tried_more_and_more_seldom_and_warned_of_once_a_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedmon.common.wire.connection.LONG_DOWN_AFTER_ROUNDS", 1)
    tried = list[float]()
    down = made(cluster_that_is_down(), on_link=lambda _: tried.append(time.monotonic()), id_is_contested=lambda: True)
    with started(down):
        wait_until(lambda: len(tried) > 12, what="enough attempts")

    assert 0.75 < max(after - before for before, after in itertools.pairwise(tried)) < 5
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_each_loss_of_a_connection_and_its_return_are_warned_of(
    mosquitto: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        words = [record.message.partition(" the broker")[0] for record in caplog.records]
        return [each for each in words if each != "cannot connect to"]

    with Proxy(mosquitto.port) as link, started(made(broker_from_url(link.url))) as connection:
        for _ in range(2):
            wait_until(lambda: connection.is_connected, what="the connection")
            link.cut()
            wait_until(lambda: not connection.is_connected, what="the loss")
            link.heal()
        wait_until(lambda: told() == ["connection lost to", "connected to"] * 2, what="warnings of both losses")


@pytest.mark.parametrize(
    ("topic", "size_bytes", "reason"),
    [
        ("general/status/a b", 1, "is not portable: letters, digits"),
        ("general/#", 1, "is not portable"),
        ("general/\udcff", 1, "is not portable"),
        ("a/b/c/d/e/f/g", 1, "at most 6 levels"),
        ("general/status/a", MAX_PACKET_BYTES + 1, f"are over the limit of {MAX_PACKET_BYTES}"),
    ],
)
def test_what_a_broker_might_drop_us_for_is_refused_before_it_is_sent(topic: str, size_bytes: int, reason: str) -> None:
    connection = made(broker_from_url("mqtt://127.0.0.1:1"))

    with pytest.raises(InvalidMessageError, match=reason):
        connection.publish(topic, bytes(size_bytes))
    is_sent = connection.publish("general/status/a", b"x")

    assert (is_sent, connection.dropped) == (False, 1)
