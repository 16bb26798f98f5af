"""Broker URLs: what they say, what is refused, and that a password in one is never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.errors import SettingsError
from fedmon.common.settings.broker import BrokerHost, BrokerSettings, broker_from_url, read_secret
from tests.support.passwords import secret_file


@pytest.mark.parametrize(
    ("url", "hosts", "tls", "username"),
    [
        ("mqtt://localhost", [("localhost", 1883)], False, None),
        ("mqtt://10.0.0.7:1884/", [("10.0.0.7", 1884)], False, None),
        ("MQTTS://broker.example.org", [("broker.example.org", 8883)], True, None),
        ("mqtts://anna@a.org:1,b.org,[::1]:3", [("a.org", 1), ("b.org", 8883), ("::1", 3)], True, "anna"),
        ("mqtt://anna%40home@h", [("h", 1883)], False, "anna@home"),
    ],
)
def test_a_url_names_hosts_encryption_and_user(
    url: str, hosts: list[tuple[str, int]], tls: bool, username: str | None
) -> None:
    settings = broker_from_url(url)

    assert [(host.host, host.port) for host in settings.hosts] == hosts
    assert (settings.tls, settings.username) == (tls, username)


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost", "localhost:1883", "http://localhost", "mqtt://", "mqtt://:1883", "mqtt://a,,b", "mqtt://a:0",
        "mqtt://a:65536", "mqtt://a:port", "mqtt://a/topic", "mqtt://a?x=1", "mqtt://a#x", "mqtt://a b", "mqtt://@a",
        "mqtt://a:", "mqtt://[::1", "mqtt://a\nb",
    ],
)  # fmt: skip
def test_what_is_no_broker_url_is_refused_with_the_right_shape(url: str) -> None:
    with pytest.raises(SettingsError, match=r"mqtt://\[user@\]host"):
        broker_from_url(url)


@pytest.mark.parametrize("url", ["mqtt://anna:s3cret@host", "mqtts://:s3cret@a,b", "http://anna:s3cret@host"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        broker_from_url(url)

    assert "s3cret" not in str(refusal.value)


def test_certificates_without_encryption_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="mqtts://"):
        broker_from_url("mqtt://host", ca_file=tmp_path / "ca.crt")
    with pytest.raises(SettingsError, match="cert_file"):
        broker_from_url("mqtts://host", key_file=tmp_path / "own.key")
    with pytest.raises(SettingsError, match=r"set broker\.username"):
        broker_from_url("mqtts://host", password_file=tmp_path / "password")


def test_a_password_is_read_from_a_file_that_only_we_can_read(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "password", "s3cret ä")

    settings = broker_from_url("mqtt://anna@host", password_file=file)

    assert settings.password() == "s3cret ä"
    assert BrokerSettings(hosts=(BrokerHost(host="h", port=1),)).password() is None


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (b"s3cret", 0o640, "chmod 600"),
        (b"s3cret", 0o604, "chmod 600"),
        (b"", 0o600, "is empty"),
        (b"\n", 0o600, "is empty"),
        (b"one\ntwo\n", 0o600, "more than one line"),
        (b"\xff\xfe", 0o600, "not UTF-8"),
        (b"x" * 20_000, 0o600, "longer than"),
    ],
)
def test_an_unsafe_or_senseless_secret_file_is_refused(
    tmp_path: Path, content: bytes, mode: int, complaint: str
) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    file.chmod(mode)

    with pytest.raises(SettingsError, match=complaint) as refusal:
        read_secret(file, what="password file")

    assert str(file) in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read token file .*gone"):
        read_secret(tmp_path / "gone", what="token file")
