"""The guided first run, as a stranger starts it, and commands and programs of the pages, as printed, beside it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from fedmon.broker.ports import PortInUseError, listening
from fedmon.demo.cli import TRY, USUAL_PORT, _broker
from tests.support.environment import stranger_environment
from tests.support.kept_demo import kept_demo
from tests.support.node_process import fedmon, plain_environment
from tests.support.notebooks import run_notebook
from tests.support.requirements import require
from tests.support.shell import Foreground, begun
from tests.support.shell_here import fedmon_here
from tests.support.store import Store
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
GUIDES = ("docs/howtos/exporting.md", "docs/howtos/job-shell.md", "docs/gallery.md")
"""Pages whose commands need files that the README has made, under other names."""
NAMES = {"samples.fmr": ("day.fmr", "store.fmr"), "run-1": ("job-metrics-4711",)}
NOT_HERE = re.compile(r"^(#!|python -m tests|fedmon job --pid)", re.MULTILINE)
INSTALLS = re.compile(r"^(pip|pipx|python3 -m venv)\b", re.MULTILINE)
STEPS_S = 40
"""How long a demo takes at the most; as the README says, on a machine with two cores."""


@pytest.fixture(scope="module")
def kept() -> Iterator[Foreground]:
    """A demo that was left running, for all who only ask it."""
    with kept_demo() as demo:
        yield demo


def check_told(document: dict[str, Any]) -> None:
    """Check that a demo did all of its steps, and with what outcome."""
    assert document["ok"] is True
    assert set(document["plan"]["decisions"].values()) == {"approved"}
    assert document["search"] == {"hospital-east": 0, "hospital-north": 0, "hospital-south": 1}
    assert sorted(dataset["shape"] for dataset in document["datasets"]) == ["167 x 31", "190 x 31", "212 x 31"]
    assert document["offline"]["reason"] == "connection lost"
    assert document["offline"]["seen_after_s"] <= 20.0
    assert document["metrics"]["lost"] == 0
    assert document["release"]["rows"] == 212
    rounds = document["regression"]["rounds"]
    accuracies = [one["accuracy"] for one in rounds]
    assert accuracies[0] < 0.7
    assert accuracies[-1] == pytest.approx(0.9789, abs=1e-4)
    assert rounds[-1]["step"] < 1e-9
    for one in rounds:
        assert {state["node"] for state in one["states"]} == set(document["plan"]["decisions"])
        for state in one["states"]:
            assert state["s"] > 0
            assert state["J"] is None or state["J"] > 0
            assert state["sandbox"] in ("bubblewrap", "landlock", "limits")


def test_the_demo_walks_through_every_step(kept: Foreground) -> None:
    check_told(kept.facts)


def test_a_demo_without_numpy_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)

    done = fedmon_here("demo")

    assert (done.returncode, done.stdout) == (3, "")
    assert "install fedmon with its extra [runs]" in done.stderr


def test_a_demo_without_room_for_its_files_names_their_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("fedmon.demo.cli.DATA", tmp_path / "file")

    done = fedmon_here("demo")

    assert done.returncode == 1
    assert re.match("fedmon: cannot write /.*/fedmon-demo-.*: Not a directory", done.stderr)


@pytest.mark.soak
def test_a_demo_that_nobody_keeps_ends_well_by_itself() -> None:
    done = fedmon("demo", "--json", timeout_s=STEPS_S)
    document = json.loads(done.stdout)

    assert done.returncode == 0, document
    check_told(document)


def test_a_demo_whose_node_dies_prints_plain_lines_until_it_fails_with_a_sentence() -> None:
    environ = plain_environment(PYTHONUNBUFFERED="1")
    process = begun("demo", environ=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("[4/9]"):
            break
    next(
        child
        for child in psutil.Process(process.pid).children()
        if any("hospital-south" in word for word in child.cmdline())
    ).kill()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 1
    assert "hospital-south" in said
    assert "Traceback" not in said
    assert [line.split()[0] for line in lines if line.startswith("[")] == [f"[{step}/9]" for step in (1, 2, 3, 4)]
    assert any("hospital-east" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def run(*command: str, url: str, folder: Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=stranger_environment(url, folder), cwd=cwd, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _examples(pattern: str) -> list[Path]:
    """The examples that need nobody's approval; tests/docs/test_federated_examples.py has the others."""
    found = sorted((ROOT / "docs/examples").glob(pattern))
    return [path for path in found if not path.name.startswith("federated_")]


@pytest.mark.slow_docs
def test_the_readme_the_examples_and_the_notebooks_run_as_they_stand(
    kept: Foreground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    import nbformat

    url = kept.facts["broker"]["url"]
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        with subtests.test("README.md", block=number):
            assert len(block.strip().splitlines()) <= 10
            writes = "local_dir=" in block
            where = tmp_path if writes else ROOT
            said = run("-c", block.replace("mqtt://localhost:1883", url), url=url, folder=tmp_path, cwd=where)
            assert ("reached=(1, 2)" if writes else "hospital-north") in said
    for script in _examples("*.py"):
        with subtests.test(script.name):
            assert "hospital-" in run(str(script), "2", url=url, folder=tmp_path)
    monkeypatch.setattr(os, "environ", os.environ | stranger_environment(url, tmp_path))
    for notebook in _examples("*.ipynb"):
        with subtests.test(notebook.name):
            document = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]  # nbformat's own
            run_notebook(document)
            outputs = json.dumps([cell.get("outputs", []) for cell in document.cells])
            assert "hospital-east" in outputs
            assert "<table" in outputs


def answered(command: list[str]) -> dict[str, str]:
    """Run a query, and return the value of each node that it finds."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {one["metric"]["node"]: one["value"][1] for one in json.loads(done.stdout)["data"]["result"]}


def test_the_five_commands_of_the_page_on_scaling_lead_to_a_store_for_grafana(kept: Foreground, tmp_path: Path) -> None:
    # Given the page, a store as its compose file starts it, and curl
    page = (ROOT / "docs/howtos/scaling.md").read_text()
    require(shutil.which("curl"), "curl is not installed")
    blocks = re.findall(r"```sh five commands\n(.*?)```", page, re.DOTALL)
    demo, password, compose, record, ask = [line for block in blocks for line in block.splitlines()]
    services = yaml.safe_load((ROOT / "envs/grafana/compose.yaml").read_text())["services"]
    own_folder = "-storageDataPath="
    options = [word for word in services["victoria-metrics"]["command"] if not word.startswith(own_folder)]
    store = Store(tmp_path / "victoria", options=options)
    typed = {"http://127.0.0.1:8428": store.url, ".venv/bin/fedmon": f"{sys.executable} -m fedmon"}

    def words(line: str) -> list[str]:
        for old, new in typed.items():
            line = line.replace(old, new)
        return shlex.split(line)

    # When a stranger types them, docker's and the demo's own word excepted
    dry = subprocess.run(
        ["make", "-n", "--no-print-directory", *shlex.split(demo)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    environ = stranger_environment(kept.facts["broker"]["url"], tmp_path / "researcher")
    with subprocess.Popen(words(record), env=environ, cwd=tmp_path) as recording:
        try:
            metrics = ("fedmon_node_online", "host_cpu_busy_ratio")
            wait_until(lambda: all(len(store.query(metric)) >= 3 for metric in metrics), what="three hospitals")
            online = wait_until(lambda: answered(words(ask)), what="an answer")
        finally:
            recording.send_signal(signal.SIGINT)
            assert recording.wait(60) == 0
            store.kill()

    # Then the store holds the three hospitals, and each command fits the files
    assert online == dict.fromkeys(("hospital-north", "hospital-east", "hospital-south"), "1")
    assert dry.stdout.splitlines()[-1] == ".venv/bin/fedmon demo --keep"
    assert shlex.split(password)[0] == "export"
    variable = shlex.split(password)[1].partition("=")[0]
    assert services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"].startswith(f"${{{variable}:?")
    assert shlex.split(compose) == ["docker", "compose", "-f", "envs/grafana/compose.yaml", "up", "--detach"]
    assert services["victoria-metrics"]["ports"] == ["127.0.0.1:8428:8428"]


def blocks(page: str) -> list[str]:
    """Return what a page tells to type in a shell."""
    return re.findall(r"^```(?:sh|bash)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that a clone has."""
    made = tmp_path_factory.mktemp("clone") / "fedmon"
    left_out = (".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "tests", "bench")
    shutil.copytree(ROOT, made, ignore=shutil.ignore_patterns(*left_out))
    return made


@pytest.fixture(scope="module")
def environ(kept: Foreground, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell that has typed what the demo prints first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return stranger_environment(kept.facts["broker"]["url"], tmp_path_factory.mktemp("researcher")) | {"PATH": path}


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


@pytest.mark.slow_docs
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
            what="the node to be online",
        )
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert "Traceback" not in said


@pytest.mark.slow_docs
def test_what_the_demo_prints_works_as_printed(
    kept: Foreground, environ: dict[str, str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    connect = kept.facts["connect"]
    bare = {name: value for name, value in environ.items() if name != "FEDMON_BROKER_URL"}
    exported = [line for line in connect["try"] if line.startswith("export ")]
    lines = [line for line in (*connect["try"], *TRY) if line.startswith("fedmon ") and "--keep" not in line]
    assert exported == [f"export FEDMON_BROKER_URL={kept.facts['broker']['url']}"]

    for line in [*lines, *connect["owners"].values()]:
        with subtests.test(line):
            # Ctrl-C ends what goes on for ever.
            ended = f"timeout --preserve-status -s INT 20 {line}" if line == "fedmon watch" else line
            typed("\n".join([*exported, ended]), tmp_path, bare)
    with subtests.test("python"):
        assert run("-c", connect["python"], url=kept.facts["broker"]["url"], folder=tmp_path).count("online") >= 3


@pytest.mark.slow_docs
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


def test_a_demo_that_stays_is_on_the_usual_port_or_on_a_free_one_where_that_is_taken() -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(PortInUseError):
            stack.enter_context(listening("127.0.0.1", USUAL_PORT))
        aside = _broker(stack, keep=True)

        assert aside.port != USUAL_PORT

    with contextlib.ExitStack() as stack:
        first, second = _broker(stack, keep=True), _broker(stack, keep=True)

        assert first.port != second.port


def test_a_kept_demo_ends_with_all_its_processes(kept: Foreground) -> None:
    code = kept.stop()  # nobody below here needs it

    assert code == 143
    wait_until(lambda: not _alive(kept.process.pid), what="every process of the demo to end")


def test_closing_the_terminal_ends_a_demo_with_all_its_processes() -> None:
    with Terminal("demo") as terminal:
        terminal.read_until("[2/9]")  # until every node is online
        demo = psutil.Process(terminal.process.pid)
        processes = demo.children(recursive=True)
        lines = map(_words, demo.children())
        nodes = [line for line in lines if "--dir" in line and "--json" not in line]  # no verbs of owners
        folders = {Path(line[line.index("--dir") + 1]).parent for line in nodes}
        terminal.close()
        terminal.process.send_signal(signal.SIGHUP)  # as a shell does that the terminal is closed for, too
        code = terminal.process.wait(60)
    left = psutil.wait_procs(processes, timeout=60.0)[1]
    for process in left:
        process.kill()

    assert code >= 0, "it was not killed by the signal"
    assert left == []
    assert (len(nodes), [folder.exists() for folder in folders]) == (3, [False])


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):  # a verb of an owner that has ended
        return process.cmdline()
    return []


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
