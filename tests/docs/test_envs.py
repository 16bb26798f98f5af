"""The files under envs/ fit the program: the service, the conda environment, the pins."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedmon.common.errors import ConflictError, FolderInUseError, NotFoundError, SettingsError
from tests.support.shell_here import fedmon_here

ENVS = Path(__file__).parents[2] / "envs"
UNIT = ENVS / "fedmon-node.service"
LOCKED_EXTRAS = [{"extra": extra} for extra in ("broker", "report", "runs")]


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys of a unit are case-sensitive
    parser.read(UNIT)
    return parser["Service"]


@pytest.mark.parametrize("verb", ["init", "start", "status"])
def test_the_service_and_its_explanation_name_verbs_and_options_that_exist(verb: str) -> None:
    lines = UNIT.read_text().replace("\\\n", "").splitlines()
    (words,) = (line.partition(f"/fedmon node {verb} ")[2].split() for line in lines if f"/fedmon node {verb} " in line)

    shown = fedmon_here("node", verb, "--help")

    assert shown.returncode == 0
    assert all(word in shown.stdout for word in words if word.startswith("--"))


def test_the_service_is_not_started_again_for_what_stays_wrong(service: configparser.SectionProxy) -> None:
    kept_down = {int(code) for code in service["RestartPreventExitStatus"].split()}

    assert kept_down == {error.exit_code for error in (SettingsError, NotFoundError, ConflictError, FolderInUseError)}
    assert service["Restart"] == "on-failure"
    assert float(service["TimeoutStopSec"]) > 5


def test_the_service_writes_into_its_own_folder_alone(service: configparser.SectionProxy) -> None:
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert f"/var/lib/{service['StateDirectory']}/" in service["ExecStart"]


@pytest.mark.parametrize("page", ["perf.md", "energy.md"])
def test_a_page_that_gives_the_service_a_capability_raises_its_bound_too(page: str) -> None:
    text = (ENVS.parent / "docs/howtos" / page).read_text()
    given = dict(re.findall(r"^(\w*Capabilit\w+)=(\w+)$", text, re.MULTILINE))

    assert given["AmbientCapabilities"] == given["CapabilityBoundingSet"]


def test_the_service_lets_plans_be_confined(service: configparser.SectionProxy) -> None:
    """Each of these was found by trying: without it a sandbox cannot be made, or the node is killed when it looks."""
    calls = set(service["SystemCallFilter"].split())
    hindering = {"ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname", "ProtectProc", "ProcSubset"}

    assert calls >= {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"}
    assert calls >= {"@mount", "sethostname"}
    assert set(service["RestrictNamespaces"].split()) >= {"ipc", "mnt", "net", "pid", "user", "uts"}
    assert hindering.isdisjoint(service)
    assert service["KillMode"] == "process"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_service(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(
        re.sub(r"/opt/fedmon/bin/fedmon", sys.executable, UNIT.read_text()).replace(
            "fedmon\nGroup=fedmon", "root\nGroup=root"
        )
    )

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )

    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []


def test_the_conda_environment_installs_this_project_with_its_pins() -> None:
    document = yaml.safe_load((ENVS / "environment.yaml").read_text())
    python, _, pip = document["dependencies"]
    options = [line.split() for line in pip["pip"]]

    assert python == "python>=3.11"
    assert {name: (ENVS / value.partition("[")[0]).exists() for name, value in options} == {
        "--constraint": True,
        "--editable": True,
    }


def pins(name: str) -> dict[str, str]:
    """Return the version of each package that a file names."""
    found = re.findall(r"^([\w.-]+)==([\w.]+)( \\)?$", (ENVS / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version, _ in found}


def test_each_package_that_we_need_is_pinned_to_a_version_that_fits() -> None:
    chosen, locked = pins("constraints.txt"), pins("lock.txt")
    needed = [Requirement(text) for text in importlib.metadata.requires("fedmon") or []]
    lines = (ENVS / "constraints.txt").read_text().splitlines()

    assert len(needed) > 20
    for requirement in needed:
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(chosen[name]), requirement
        if requirement.marker is None or any(map(requirement.marker.evaluate, LOCKED_EXTRAS)):
            assert locked[name] == chosen[name], requirement
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines if not line.startswith("#"))
