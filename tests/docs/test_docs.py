"""The documentation promises nothing that is not there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_process import plain_environment

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "broker/README.md", ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:fedmon|broker|envs|docs|tests|bench)/[\w./-]+)`", page.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_architecture_page_names_the_files_that_matter() -> None:
    named = set(re.findall(r"`(fedmon/[\w/]+\.py)`", (ROOT / "docs/architecture.md").read_text()))

    assert len(named) >= 30


@contextlib.contextmanager
def demo() -> Iterator[str]:
    """The URL of a demo that was left running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmon", "demo", "--keep", "--json"],
        env=plain_environment(PYTHONUNBUFFERED="1"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            break
    yield json.loads("".join(lines))["broker"]["url"]
    process.send_signal(signal.SIGTERM)
    process.wait(20)


def researcher_environment(url: str, folder: Path) -> dict[str, str]:
    return plain_environment(FEDMON_BROKER_URL=url, FEDMON_RESEARCHER_FOLDER=str(folder))


def run(*command: str, url: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=researcher_environment(url, folder), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _examples(pattern: str) -> list[Path]:
    """The examples that need nobody's approval; test_federated_examples.py has the others."""
    found = sorted((ROOT / "docs/examples").glob(pattern))
    return [path for path in found if not path.name.startswith("federated_")]


@pytest.mark.slow_docs
def test_the_readme_the_examples_and_the_notebooks_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    import nbformat
    from nbclient import NotebookClient

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    with demo() as url:
        for number, block in enumerate(blocks):
            with subtests.test("README.md", block=number):
                assert len(block.strip().splitlines()) <= 10
                assert "hospital-north" in run(
                    "-c", block.replace("mqtt://localhost:1883", url), url=url, folder=tmp_path
                )
        for script in _examples("*.py"):
            with subtests.test(script.name):
                assert "hospital-" in run(str(script), "2", url=url, folder=tmp_path)
        monkeypatch.setattr(os, "environ", os.environ | researcher_environment(url, tmp_path))
        for notebook in _examples("*.ipynb"):
            with subtests.test(notebook.name):
                document = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]  # nbformat's own
                NotebookClient(document, timeout=60, kernel_name="python3").execute(env=dict(os.environ))
                outputs = json.dumps([cell.get("outputs", []) for cell in document.cells])
                assert "hospital-east" in outputs
                assert "<table" in outputs


def test_every_command_is_documented() -> None:
    from tests.docs.commands import commands

    page = (ROOT / "docs/commands.md").read_text()

    assert [command for command in commands() if f"## `{command}`" not in page] == []


def test_no_command_is_documented_that_is_not_there() -> None:
    from tests.docs.commands import commands

    page = (ROOT / "docs/commands.md").read_text()

    assert set(re.findall(r"^## `(.+)`$", page, re.MULTILINE)) == set(commands())
