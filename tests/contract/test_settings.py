"""Settings keep their keys, defaults and variables; the package keeps its command, extras and groups of plug-ins."""

from __future__ import annotations

import json
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.contract.opened import opened
from tests.contract.tables import rewrite, table
from tests.support.environment import plain_environment
from tests.support.node_process import write_node_folder
from tests.support.shell_here import document_here, fedmon_here

ROOT = Path(__file__).parents[2]
_SECTIONS = table("settings")
_SETTINGS = {f"{section}.{name}": row for section, names in _SECTIONS.items() for name, row in names.items()}


@pytest.fixture(scope="module")
def settings() -> dict[str, dict[str, list[str]]]:
    """The keys of the page of settings, by section: what is allowed, default, variables; another test keeps it true."""
    found: dict[str, dict[str, list[str]]] = {}
    party = section = ""
    for line in (ROOT / "docs/settings.md").read_text(encoding="utf-8").splitlines():
        party = heading[1] if (heading := re.fullmatch(r"## (?:Of )?(.+)", line)) else party
        section = f"{party}: {heading[1]}" if (heading := re.fullmatch(r"### \[(\w+)\]", line)) else section
        if row := re.fullmatch(r"\| `(\w+)` \| .* \| (.*?) \| (.*?) \| (.*?) \|", line):
            allowed, default, variables = (text.replace("`", "") for text in row.groups()[1:])
            more = [name for name in variables.split(", ") if name != _variable(f"{section}.{row[1]}")]
            found.setdefault(section, {})[row[1]] = [_brief(allowed), default, *more]
        elif row := re.fullmatch(r"\| `(FEDMON_\w+)` \| .* \|", line):
            found.setdefault("environment", {})[row[1]] = []
    rewrite("settings", found)
    return found


def _variable(key: str) -> str:
    """Return the variable that every key has beside those that a row names, unless it is in the file alone: none."""
    return f"FEDMON_{key.rsplit(': ', maxsplit=1)[-1].replace('.', '_')}".upper()


def _brief(allowed: str) -> str:
    """Return the choices or the range of a key."""
    bounds = re.search(r"(?:from|above) ([\d.]+)(?: to ([\d.]+))?", allowed)
    return ", ".join(re.findall(r'"([^"]*)"', allowed)) or (f"{bounds[1]} to {bounds[2] or 'inf'}" if bounds else "")


@pytest.mark.parametrize("key", _SETTINGS)
def test_a_setting_keeps_its_values_its_default_and_its_variables(
    key: str, settings: dict[str, dict[str, list[str]]]
) -> None:
    section, name = key.rsplit(".", 1)
    assert name in settings[section]
    if not _SETTINGS[key]:
        return
    (allowed, default, *variables), (allowed_now, default_now, *variables_now) = _SETTINGS[key], settings[section][name]

    assert default == default_now
    assert variables == variables_now[: len(variables)]
    assert ("none" in variables) == ("none" in variables_now)
    if " to " in allowed:
        (low, high), (low_now, high_now) = (map(float, text.split(" to ")) for text in (allowed, allowed_now))
        assert low_now <= low < high <= high_now
    else:
        assert set(filter(None, allowed.split(", "))) <= set(allowed_now.split(", "))


@pytest.mark.parametrize("party", ["node", "researcher"])
def test_a_file_with_every_key_loads(party: str, tmp_path: Path) -> None:
    folder = tmp_path / party
    folder.mkdir(mode=0o700)
    file = folder / f"{party}.toml"
    opened(f"{party}.toml", folder)

    if party == "node":
        shown = _shown(folder)
        written = _keys("a node") | _keys("both")  # later keys are not in a file of before
        assert [key for key, (_, origin) in shown.items() if origin != "file" and key in written] == []
        assert {key for key in shown if not key.startswith("plugins")} >= written
    else:
        done = fedmon_here("nodes", "--settings", str(file), "--timeout", "0.2", "--json")
        # It was understood, and nobody is at the broker's address.
        assert (done.returncode, json.loads(done.stdout)["error"]["type"]) == (5, "ConnectionFailedError")


def test_a_variable_goes_before_the_file(tmp_path: Path, settings: dict[str, dict[str, list[str]]]) -> None:
    folder = write_node_folder(tmp_path / "node", node_id="ward7")
    rows = {key.split(": ")[1]: row for key, row in _SETTINGS.items() if ": " in key and "a researcher" not in key}
    given = {key: row[1] for key, row in rows.items() if row[1] not in ("", "[]") and "none" not in row}

    shown = _shown(folder, **{_variable(key): _plain(default) for key, default in given.items()})

    assert len(given) > 30 or not _SETTINGS
    assert {key: shown[key][1] for key in given} == {key: _variable(key) for key in given}


def test_the_command_the_extras_and_the_groups_of_plugins_are_there() -> None:
    from fedmon.node.collectors.plugins import GROUP

    found = distribution("fedmon")

    scripts = {point.name: point.value for point in found.entry_points if point.group == "console_scripts"}
    assert scripts == {"fedmon": "fedmon.cli:main"}
    assert set(found.metadata.get_all("Provides-Extra") or []) >= {"broker", "report", "runs", "test"}
    assert GROUP == "fedmon.collectors"


def test_a_collector_of_another_package_is_loaded_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "fedmon_sockets-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedmon-sockets\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fedmon.collectors]\nsockets = fedmon_sockets:make\n")
    for path in (tmp_path, ROOT / "docs/examples/collector_plugin"):
        monkeypatch.syspath_prepend(str(path))
    folder = write_node_folder(tmp_path / "node", node_id="n", metrics={"plugins": ["sockets"]})

    probed = document_here("node", "probe", "--dir", folder)

    (group,) = (group for group in probed["groups"] if group["name"] == "plugin-sockets")
    told = {(metric["name"], metric["source"], metric["reason"]) for metric in group["metrics"]}
    assert ("host_sockets_used", "/proc/net/sockstat", None) in told
    assert {name for name, _, _ in told} == {"host_sockets_used", "host_sockets_in_use"}
    assert next(metric["series"] for metric in group["metrics"] if metric["name"] == "host_sockets_used") == 1


def _shown(folder: Path, **environ: str) -> dict[str, tuple[Any, str]]:
    shown = document_here("node", "config", "show", "--dir", folder, environ=plain_environment(**environ))
    return {one["key"]: (one["value"], one["origin"]) for one in shown["settings"]}


def _keys(party: str) -> set[str]:
    return {key.split(": ")[1] for key in _SETTINGS if key.startswith(f"{party}: ") and "NAME" not in key}


def _plain(default: str) -> str:
    """Return a default of the page as a variable holds it."""
    value = json.loads(default)
    return ",".join(value) if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
