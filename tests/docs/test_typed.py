"""What the pages and the demo tell to type works as printed: in bash, in a clean clone, beside a demo that is kept."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.demo.cli import TRY
from tests.support.kept_demo import KeptDemo, kept_demo, researcher_environment
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
GUIDES = ("docs/howtos/exporting.md", "docs/howtos/job-shell.md", "docs/gallery.md")
"""Pages whose commands need files that the README has made, under other names."""
NAMES = {"samples.fmr": ("day.fmr", "store.fmr"), "run-1": ("job-metrics-4711",)}
NOT_HERE = re.compile(r"^(#!|python -m tests|fedmon job --pid)", re.MULTILINE)
INSTALLS = re.compile(r"^(pip|pipx|python3 -m venv)\b", re.MULTILINE)

pytestmark = [pytest.mark.slow_docs, pytest.mark.timeout(300)]


def blocks(page: str) -> list[str]:
    """Return what a page tells to type in a shell."""
    return re.findall(r"^```(?:sh|bash)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptDemo]:
    with kept_demo() as demo:
        yield demo


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that a clone has."""
    made = tmp_path_factory.mktemp("clone") / "fedmon"
    left_out = (".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "tests", "bench")
    shutil.copytree(ROOT, made, ignore=shutil.ignore_patterns(*left_out))
    return made


@pytest.fixture(scope="module")
def environ(kept: KeptDemo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell that has typed what the demo prints first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return researcher_environment(kept.url, tmp_path_factory.mktemp("researcher")) | {"PATH": path}


def bash(lines: str, cwd: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-eu", "-c", lines],
        cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def typed(lines: str, cwd: Path, environ: dict[str, str], *, timeout_s: float = 200) -> str:
    """Type lines in a shell, check that no error came, and return what was printed."""
    process = bash(lines, cwd, environ)
    said, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, f"{lines}\n{said}"
    assert "Traceback" not in said
    return said


def test_the_readme_and_guides_work_as_printed(clone: Path, environ: dict[str, str], subtests: pytest.Subtests) -> None:
    for block in blocks("README.md"):
        with subtests.test(block.splitlines()[0]):
            if block.startswith("make "):
                typed(re.sub("^make", "make -n", block, flags=re.MULTILINE), clone, environ)
            elif "fedmon node start" in block:
                check_a_node_starts(block, clone, environ)
            elif not INSTALLS.search(block):
                typed(block, clone, environ)
    for name, others in NAMES.items():
        for other in others:
            (clone / other).symlink_to(name)
    for block in (block for page in GUIDES for block in blocks(page) if not NOT_HERE.search(block)):
        with subtests.test(block.splitlines()[0]):
            typed(block, clone, environ)


def check_a_node_starts(block: str, clone: Path, environ: dict[str, str]) -> None:
    process = bash(block, clone, environ)
    try:
        wait_until(
            lambda: '"node_id":"ward7","state":"online"' in fedmon_here("nodes", "--json", environ=environ).stdout,
            30,
            what="the node to be online",
        )
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=20)
    assert "Traceback" not in said


def test_what_the_demo_prints_works_as_printed(
    kept: KeptDemo, environ: dict[str, str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    connect = kept.document["connect"]
    bare = {name: value for name, value in environ.items() if name != "FEDMON_BROKER_URL"}
    exported = [line for line in connect["try"] if line.startswith("export ")]
    lines = [line for line in (*connect["try"], *TRY) if line.startswith("fedmon ") and "--keep" not in line]
    assert exported == [f"export FEDMON_BROKER_URL={kept.url}"] or kept.url.endswith(":1883")

    for line in [*lines, *connect["owners"].values()]:
        with subtests.test(line):
            # Ctrl-C ends what goes on for ever.
            ended = f"timeout --preserve-status -s INT 5 {line}" if line == "fedmon watch" else line
            typed("\n".join([*exported, ended]), tmp_path, bare)


def test_a_folder_called_fedmon_next_to_a_script_hides_nothing(clone: Path) -> None:
    script = clone.parent / "notebook.py"
    script.write_text("import fedmon\nprint(fedmon.Federation)\n")

    done = subprocess.run([sys.executable, str(script)], cwd=clone.parent, capture_output=True, text=True)

    assert "Federation" in done.stdout, done.stderr


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_install_lines_of_the_readme_work_as_printed(clone: Path, tmp_path: Path) -> None:
    # What says where packages are downloaded from stays.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FEDMON_", "PYTEST_"))}
    environ |= {name: str(tmp_path / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR", "UV_CACHE_DIR")}
    first, second = (block for block in blocks("README.md") if INSTALLS.search(block))

    typed(f"{first}\nfedmon --version\npip install --quiet pipx uv", clone, environ, timeout_s=600)
    said = typed(
        f"source fedmon-env/bin/activate\n{second}\n{tmp_path}/PIPX_BIN_DIR/fedmon --version",
        clone,
        environ,
        timeout_s=600,
    )

    assert "everything worked" in said
    assert re.search(r"^fedmon \d", said, re.MULTILINE)
