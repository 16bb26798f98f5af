"""What a federation is opened with: arguments over settings over environment, and no secret for another broker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmon.common.errors import FedmonError, InvalidIdError, SettingsError
from fedmon.common.settings.broker import BrokerHost
from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.passwords import secret_file


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    return secret_file(tmp_path / "secret", "sesame")


@pytest.fixture
def file(tmp_path: Path, password_file: Path) -> Path:
    path = tmp_path / "researcher.toml"
    path.write_text(
        '[researcher]\nid = "carol"\ntimeout_s = 7.0\n'
        f'[broker]\nurl = "mqtts://hospital.org"\nusername = "carol"\npassword_file = "{password_file}"\n'
    )
    return path


def test_without_anything_it_is_the_local_broker_and_an_id_that_is_kept(tmp_path: Path) -> None:
    federation = Federation(folder=tmp_path)

    assert federation.settings.broker.hosts == (BrokerHost(host="localhost", port=1883),)
    assert federation.researcher_id == (tmp_path / "researcher_id").read_text().strip()


def test_a_settings_file_says_it_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(file.parent))

    federation = Federation(settings=f"~/{file.name}")

    assert federation.researcher_id == "carol"
    assert repr(federation) == "<Federation at mqtts://hospital.org:8883 as carol>"
    assert federation.settings.broker.hosts == (BrokerHost(host="hospital.org", port=8883),)
    assert federation.settings.broker.password() == "sesame"
    assert federation.settings.timeout_s == 7.0


def test_arguments_rule_over_settings_and_environment(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_RESEARCHER_ID", "from-the-environment")
    monkeypatch.setenv("FEDMON_BROKER_URL", "mqtt://from-the-environment")

    by_environment = Federation(settings=file)
    by_argument = Federation("mqtt://argument:2000", settings=file, researcher_id="dave", folder=tmp_path / "dave")

    assert by_environment.researcher_id == "from-the-environment"
    assert by_environment.settings.broker.hosts[0].host == "from-the-environment"
    assert by_argument.researcher_id == "dave"
    assert by_argument.settings.broker.hosts == (BrokerHost(host="argument", port=2000),)
    assert by_argument.settings.folder == tmp_path / "dave"


def test_another_url_takes_over_no_secret_that_was_meant_for_the_first(file: Path) -> None:
    broker = Federation("mqtt://elsewhere.org", settings=file).settings.broker

    assert (broker.username, broker.password_file, broker.tls) == (None, None, False)


@pytest.mark.parametrize("url", ["mqtts://erin@hospital.org", "mqtts://hospital.org"])
def test_a_user_name_is_the_id_as_well_unless_another_is_given(url: str, tmp_path: Path, password_file: Path) -> None:
    username = None if "@" in url else "erin"

    implied = Federation(url, username=username, password_file=password_file, folder=tmp_path)
    given = Federation(url, username=username, password_file=password_file, folder=tmp_path, researcher_id="frank")

    assert (implied.researcher_id, implied.settings.broker.username) == ("erin", "erin")
    assert (given.researcher_id, given.settings.broker.username) == ("frank", "erin")


@pytest.mark.parametrize("unusable", ["all", "a b"])
def test_an_id_or_instance_that_is_no_topic_level_is_refused(unusable: str, tmp_path: Path) -> None:
    with pytest.raises(FedmonError, match=r"researcher_id|researcher\.id"):
        Federation(folder=tmp_path, researcher_id=unusable)
    with pytest.raises(InvalidIdError, match="instance"):
        Federation(folder=tmp_path, instance=unusable)


def test_a_password_that_others_can_read_is_refused_by_the_call(tmp_path: Path, password_file: Path) -> None:
    password_file.chmod(0o644)

    with pytest.raises(SettingsError, match="chmod 600") as refused:
        Federation("mqtt://erin@hospital.org", password_file=password_file, folder=tmp_path)

    assert "sesame" not in str(refused.value)


def test_threads_that_start_it_at_once_share_one_connection(mosquitto: Broker, tmp_path: Path) -> None:
    federation = Federation(mosquitto.url, researcher_id="alice", folder=tmp_path)
    together, before = threading.Barrier(4), set(threading.enumerate())

    def start(_number: int) -> Federation:
        together.wait(60)
        return federation.start()

    with ThreadPoolExecutor(together.parties) as pool:
        list(pool.map(start, range(together.parties)))
    opened = [thread.name for thread in set(threading.enumerate()) - before]
    federation.close()

    assert opened.count("fedmon-inbox") == 1
