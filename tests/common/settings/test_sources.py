"""Reading settings: the file, the environment over it, and refusals that say where and what."""

from __future__ import annotations

import getpass
import os
import re
import socket
import stat
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmon.common.errors import SettingsError, StorageError
from fedmon.common.ids import kept_client_id, new_researcher_id
from fedmon.common.settings.broker import BrokerHost
from fedmon.common.settings.sources import load_broker, load_node, load_researcher
from fedmon.common.settings.values import NodeSettings


def node(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> NodeSettings:
    (folder / "node.toml").write_text(text)
    return load_node(folder, environ or {})


def test_paths_in_a_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    broker = 'url = "mqtts://north@a.org"\nca_file = "certs/ca.crt"\npassword_file = "/etc/fedmon/password"'

    settings = node(tmp_path, f'[node]\nid = "n"\ndefault_plans_dir = "plans"\n[broker]\n{broker}')

    assert settings.default_plans_dir == tmp_path / "plans"
    assert settings.broker.ca_file == tmp_path / "certs/ca.crt"
    assert settings.broker.password_file == Path("/etc/fedmon/password")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"\[node\] id is missing"),
        ('[node]\nid = "n"\nwirre = "fedmon"', r"unknown key 'wirre' in \[node\]; did you mean 'wire'\?"),
        ('[node]\nid = "n"\nzzz = 1', r"unknown key 'zzz' in \[node\]; allowed are id, wire"),
        ('[brocker]\nurl = "mqtt://h"', r"unknown section \[brocker\]; did you mean 'broker'\?"),
        ('id = "n"', r"unknown section \[id\]; allowed are node, broker"),
        ('node = "n"', "node is outside of a section"),
        ('[node]\nid = "n"\nwire = "mqtt"', r'\[node\] wire = .mqtt.: allowed is one of "fedmon", "fedbiomed4"'),
        ('[node]\nid = "n"\nmax_plan_bytes = "1"', r"max_plan_bytes = .1.: allowed is a whole number from 1024"),
        ('[node]\nid = "n"\n[metrics]\ninterval_s = 0.1', r"interval_s = 0.1: allowed is a number from 0.2 to 3600"),
        ('[node]\nid = "n"\n[metrics]\ninterval_s = nan', r"interval_s"),
        ('[node]\nid = "n"\n[metrics]\ninterval_s = true', r"interval_s = True: allowed is a number"),
        ('[node]\nid = "n"\n[metrics]\ninterval_s = 1\nmin_interval_s = 2', "min_interval_s = 2 is above"),
        ('[node]\nid = "n"\n[metrics]\nenabled = 1', "enabled = 1: allowed is true or false"),
        ('[node]\nid = "n"\n[policy]\nresearchers = "anna"', "researchers = 'anna': allowed is a list of texts"),
        ('[node]\nid = "n"\n[policy]\nresearchers = ["an na"]', "names 'an na', not a researcher id"),
        ('[node]\nid = "n"\n[policy]\ndatasets = ["x"]', "allowed is a table of lists of texts"),
        ('[node]\nid = "n"\n[policy.datasets]\nx = ["a b"]', r"datasets\.x names 'a b'"),
        ('[node]\nid = "a/b"', "node.id 'a/b' is not usable"),
        ('[node]\nid = "nodes"', "is reserved"),
        ('[node]\nid = "n"\ndefault_plans_dir = 5', "default_plans_dir = 5: allowed is a path"),
        ('[node]\nid = "n"\ndefault_plans_dir = ""', "default_plans_dir = '': allowed is a path"),
        ('[node]\nid = "n"\n[broker]\nkeepalive_s = 1', "keepalive_s = 1: allowed is a whole number from 5 to 3600"),
        ('[node]\nid = "n"\n[broker]\nca_file = "ca.crt"', "not encrypted; write mqtts://"),
        ('[node]\nid = "n"\n[broker]\nurl = "mqtt://a:b@h"', "holds a password"),
        ('[node]\nid = "n"\n[repository]\nurl = "ftp://h"', r"\[repository\] url = 'ftp://h'"),
        ('[node]\nid = "n"\n[node]\nid = "m"', "is not valid TOML"),
        ('[node]\nid = "n"\n[plugins]\nsockets = 3', r"\[plugins\] sockets = 3: allowed is a table"),
        ("[node", "is not valid TOML"),
    ],
)
def test_a_mistake_is_refused_with_file_key_and_what_is_allowed(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as refusal:
        node(tmp_path, text)

    assert str(tmp_path / "node.toml") in str(refusal.value)


def test_a_file_that_is_missing_binary_too_long_or_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"node\.toml does not exist"):
        load_node(tmp_path, {})
    for content, complaint in (
        (b"\xff\xfe\x00", "is not valid TOML"),
        (b"#" * 1_048_577, "is longer than 1048576 bytes"),
    ):
        (tmp_path / "node.toml").write_bytes(content)
        with pytest.raises(SettingsError, match=complaint):
            load_node(tmp_path, {})
    with pytest.raises(SettingsError, match=f"cannot read settings file {tmp_path}: Is a directory"):
        load_researcher(tmp_path, {})


def test_variables_go_before_the_file(tmp_path: Path) -> None:
    environ = {
        "FEDMON_NODE_ID": "from-variable",
        "FEDMON_BROKER_URL": "mqtt://operator@variable:5",
        "FEDMON_BROKER_KEEPALIVE_S": "7",
        "FEDMON_POLICY_RESEARCHERS": "anna, bert,",
        "FEDMON_METRICS_ENABLED": "false",
        "FEDMON_METRICS_INTERVAL_S": "0.5",
        "FEDMON_NODE_DIR": "/nothing/read",
        "FEDMON_RESEARCHER_TIMEOUT_S": "3",
        "PATH": "/bin",
    }

    settings = node(tmp_path, '[node]\nid = "n"\n[broker]\nurl = "mqtt://file"\nusername = "alice"', environ)

    assert settings.id == "from-variable"
    assert (settings.broker.username, settings.broker.hosts) == ("operator", (BrokerHost(host="variable", port=5),))
    assert settings.broker.keepalive_s == 7
    assert settings.policy.researchers == ("anna", "bert")
    assert (settings.metrics.enabled, settings.metrics.interval_s) == (False, 0.5)


@pytest.mark.parametrize(
    ("environ", "host", "port"),
    [
        ({"MQTT_BROKER": "old"}, "old", 8883),
        ({"MQTT_BROKER": "old", "MQTT_BROKER_PORT": "7"}, "old", 7),
        ({"MQTT_BROKER_PORT": "7"}, "file", 7),
        ({"MQTT_BROKER": "::1", "MQTT_BROKER_PORT": "7"}, "::1", 7),
        ({"MQTT_BROKER": "old", "FEDMON_BROKER_URL": "mqtts://new:9"}, "new", 9),
        ({"MQTT_BROKER": "", "MQTT_BROKER_PORT": ""}, "file", 5),
    ],
)
def test_historic_variables_change_host_and_port_and_ours_go_first(
    tmp_path: Path, environ: dict[str, str], host: str, port: int
) -> None:
    settings = node(tmp_path, '[node]\nid = "n"\n[broker]\nurl = "mqtts://me@file:5"', environ)

    assert settings.broker.hosts == (BrokerHost(host=host, port=port),)
    assert settings.broker.tls


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({"FEDMON_METRICS_INTERVALL_S": "1"}, "did you mean 'FEDMON_METRICS_INTERVAL_S'"),
        ({"FEDMON_METRICS_INTERVAL_S": "fast"}, "FEDMON_METRICS_INTERVAL_S = 'fast': allowed is a number from 0.2"),
        ({"FEDMON_NODE_WIRE": "x"}, 'FEDMON_NODE_WIRE = .x.: allowed is one of "fedmon"'),
        ({"FEDMON_NODE_DEFAULT_PLANS_DIR": ""}, "FEDMON_NODE_DEFAULT_PLANS_DIR = '': allowed is a path"),
        ({"FEDMON_POLICY_DATASETS": "x"}, "FEDMON_POLICY_DATASETS"),
        ({"MQTT_BROKER_PORT": "many"}, "MQTT_BROKER_PORT"),
        ({"MQTT_BROKER": "a b"}, "broker address"),
        ({"NODE_ID": "a b"}, "not usable"),
    ],
)
def test_a_bad_variable_is_refused_by_name(tmp_path: Path, environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        node(tmp_path, '[node]\nid = "n"', environ)


def test_a_researcher_needs_no_file_and_keeps_the_id_made_for_it(tmp_path: Path) -> None:
    environ = {"FEDMON_RESEARCHER_FOLDER": str(tmp_path / "mine")}

    first, second = load_researcher(None, environ), load_researcher(None, environ)

    assert first == second
    user, host = re.escape(getpass.getuser()), re.escape(socket.gethostname().partition(".")[0])
    assert re.fullmatch(f"{user}-{host}-[0-9a-f]{{4}}", first.id)
    assert first.folder == tmp_path / "mine"
    assert first.timeout_s == 5.0
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "mine" / "researcher_id").stat().st_mode) == 0o600


def test_processes_that_start_at_once_agree_on_one_id(tmp_path: Path) -> None:
    environ = {"FEDMON_RESEARCHER_FOLDER": str(tmp_path / "mine")}
    gate = threading.Barrier(8)

    def start(_number: int) -> str:
        gate.wait(60)
        return load_researcher(None, environ).id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(start, range(8)))

    assert len(ids) == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["researcher_id"]


def test_a_user_without_a_name_gets_an_id_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)  # as in a container

    assert new_researcher_id().startswith("researcher-")


def test_a_damaged_client_id_is_made_anew_and_one_that_cannot_be_kept_is_reported(tmp_path: Path) -> None:
    (tmp_path / "client_id").write_bytes(b"\xff\n")

    made = kept_client_id(tmp_path, "north")

    assert re.fullmatch("north-[0-9a-f]{32}", made)
    assert kept_client_id(tmp_path, "north") == made
    with pytest.raises(StorageError, match=r"cannot write .*client_id/folder"):
        kept_client_id(tmp_path / "client_id" / "folder", "north")


def test_a_researcher_reads_the_file_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('[researcher]\nid = "anna"\nfolder = "state"\ntimeout_s = 2\n[broker]\nurl = "mqtt://h:9"')

    by_argument = load_researcher(file, {})
    by_variable = load_researcher(None, {"FEDMON_RESEARCHER_FILE": str(file)})

    assert by_argument == by_variable
    assert (by_argument.id, by_argument.folder, by_argument.timeout_s) == ("anna", tmp_path / "state", 2.0)
    assert not (tmp_path / "state").exists()


def test_a_researcher_file_in_the_home_of_an_unknown_user_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"FEDMON_RESEARCHER_FILE = '~no-such-user/r\.toml': "):
        load_researcher(None, {"FEDMON_RESEARCHER_FILE": "~no-such-user/r.toml"})


def test_the_user_in_the_url_of_a_job_goes_before_that_of_the_environment() -> None:
    assert load_broker("mqtt://me@h", {"FEDMON_BROKER_USERNAME": "cluster-1"}).username == "me"


def test_a_researcher_has_no_policy_section(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("[policy]\nresearchers = []")

    with pytest.raises(SettingsError, match=r"unknown section \[policy\]; allowed are researcher, broker, repository"):
        load_researcher(file, {})
    with pytest.raises(SettingsError, match=r"gone\.toml does not exist"):
        load_researcher(tmp_path / "gone.toml", {})


def test_an_unreadable_kept_id_is_reported(tmp_path: Path) -> None:
    (tmp_path / "researcher_id").write_bytes(b"\xff\xff")

    with pytest.raises(StorageError, match="remove that file"):
        load_researcher(None, {"FEDMON_RESEARCHER_FOLDER": str(tmp_path)})


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=r"cannot keep the researcher id.*FEDMON_RESEARCHER_FOLDER"):
        load_researcher(None, {"FEDMON_RESEARCHER_FOLDER": str(tmp_path / "file" / "folder")})


def test_the_settings_of_a_plug_in_are_whatever_it_understands(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(
        '[node]\nid = "n"\n[metrics]\nplugins = ["sockets"]\n[plugins.sockets]\nfamilies = ["inet"]\ndeep = { a = 1 }\n'
    )

    settings = load_node(tmp_path, {})

    assert settings.metrics.plugins == ("sockets",)
    assert settings.plugins == {"sockets": {"families": ["inet"], "deep": {"a": 1}}}
