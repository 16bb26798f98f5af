"""The files in ``broker/clusters``: valid, wide enough for 10,000 nodes, and users that cannot be got wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.broker.production import compose_document
from tests.support.clusters import CLUSTERS, FILES
from tests.support.passwords import PASSWORD

KINDS = sorted(CLUSTERS)


def service(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = compose_document((FILES / kind / "compose.yaml").read_text())["services"][kind]
    return found


def add(folder: Path, *words: str, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["./user", *words], cwd=folder, input=password + "\n", capture_output=True, text=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_compose_file_is_valid_and_gives_no_rights_away(kind: str) -> None:
    found = service(kind)

    assert found["user"].startswith("${FEDMON_UID:?")
    assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
    assert found["ulimits"] == {"nofile": 65_536}
    assert [mount["source"] for mount in found["volumes"]] == [".", "./data"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_user_is_refused_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FILES / kind, tmp_path / kind))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    refusals = [
        add(folder),
        add(folder, "a/b", "node"),
        add(folder, "a b", "node"),
        add(folder, "job-1", "node"),
        add(folder, "hospital-a", "king"),
        add(folder, "hospital-a"),
        add(folder, "hospital-a", "node", password="short"),
        *([add(folder, "cluster-1", "job")] if kind == "nats" else []),
    ]

    assert [done.returncode for done in refusals] == [2] * len(refusals)
    assert all(done.stderr.count("\n") == 1 for done in refusals)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_is_replaced_and_its_password_is_not_written_down(kind: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FILES / kind, tmp_path / kind))

    for password in (PASSWORD, PASSWORD + "2"):
        done = add(folder, "hospital-a", "monitor", password=password)
        assert (done.returncode, done.stderr) == (0, "")
    assert add(folder, "hospital-b", "node").returncode == 0
    for name, role in (("hospital-a", "node"), ("hospital-b", "monitor"), ("hospital-b", "researcher")):
        done = add(folder, name, role)
        assert (done.returncode, done.stderr.partition(":")[0]) == (2, f"{name} has another role already")

    written = [path for path in folder.rglob("*") if path.is_file() and "hospital-a" in path.read_text()]
    text = "".join(path.read_text() for path in written if path.name != "user")
    assert PASSWORD not in text
    assert "logger" not in text.partition("hospital-b")[0]  # the rights of a monitor, and no more
    assert {path.stat().st_mode & 0o077 for path in written if path.name != "user"} == {0}
