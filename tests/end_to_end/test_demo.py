"""The guided first run, as a stranger starts it, and what the documentation shows with it."""

from __future__ import annotations

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

from fedmon.broker.engine import choose_engine
from fedmon.demo.cli import DemoScreen, RoundCost, Story, TrainingRound, explanation, round_columns, round_row
from fedmon.demo.hospitals import DemoError, Hospitals
from fedmon.researcher.federation import Federation
from tests.support.kept_demo import KeptDemo, kept_demo, researcher_environment
from tests.support.node_process import fedmon, plain_environment
from tests.support.requirements import require
from tests.support.store import Store
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
STEPS_S = 40
"""How long all steps take at the most; as the README says, on a machine with two cores."""


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptDemo]:
    """A demo that was left running, for all who only ask it."""
    with kept_demo() as demo:
        yield demo


class OnlyFirstStep(DemoScreen):
    """Ends the demo where its second step would begin."""

    def step(self, number: int, total: int, title: str) -> None:  # noqa: ARG002
        """Begin a step, or end the demo."""
        if number > 1:
            raise DemoError("far enough")


def test_the_demo_sees_nodes_that_were_online_before_it_listened(tmp_path: Path) -> None:
    # Given three nodes that the researcher already knows to be online
    with (
        choose_engine("auto")() as broker,
        Hospitals(tmp_path, broker.url) as hospitals,
        Federation(broker.url, researcher_id="demo-researcher", folder=tmp_path / "researcher") as fed,
    ):
        hospitals.make()
        wait_until(lambda: len(fed.nodes().online) == 3, timeout_s=30)

        # When the demo begins
        story = Story(fed, hospitals, OnlyFirstStep(quiet=True), tmp_path, {"timings_s": {}})
        with pytest.raises(DemoError, match="far enough"):
            story.run()

    # Then its first step sees all three
    assert [node["state"] for node in story.document["nodes"]] == ["online"] * 3


def check_told(document: dict[str, Any]) -> None:
    """Check that a demo did all of its steps, and with what outcome."""
    assert document["ok"] is True
    assert set(document["plan"]["decisions"].values()) == {"approved"}
    assert document["search"] == {"hospital-east": 0, "hospital-north": 0, "hospital-south": 1}
    assert sorted(dataset["shape"] for dataset in document["datasets"]) == ["167 x 31", "190 x 31", "212 x 31"]
    assert document["offline"]["reason"] == "connection lost"
    assert document["offline"]["seen_after_s"] <= 2.0
    assert document["metrics"]["lost"] == 0
    assert document["release"]["rows"] == 212
    rounds = document["regression"]["rounds"]
    accuracies = [one["accuracy"] for one in rounds]
    assert accuracies[0] < 0.7
    assert accuracies[-1] == pytest.approx(0.9789, abs=1e-4)
    assert rounds[-1]["step"] < 1e-9
    for one in rounds:
        assert set(one["nodes"]) == set(document["plan"]["decisions"])
        for cost in one["nodes"].values():
            assert cost["seconds"] > 0
            assert cost["bytes_sent"] > 0
            assert cost["bytes_received"] > 0
            assert cost["joules"] is None or cost["joules"] > 0
            assert cost["sandbox"] in ("bubblewrap", "landlock", "limits")


def test_the_demo_walks_through_every_step(kept: KeptDemo) -> None:
    check_told(kept.document)


@pytest.mark.soak
def test_a_demo_that_nobody_keeps_ends_well_by_itself() -> None:
    done = fedmon("demo", "--json", timeout_s=STEPS_S + 20)
    document = json.loads(done.stdout)

    assert done.returncode == 0, document
    check_told(document)
    assert document["timings_s"]["total"] <= STEPS_S


def test_a_demo_whose_node_dies_prints_plain_lines_until_it_fails_with_a_sentence() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmon", "demo"],
        env=plain_environment(PYTHONUNBUFFERED="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("[4/10]"):
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
    assert [line.split()[0] for line in lines if line.startswith("[")] == [f"[{step}/10]" for step in (1, 2, 3, 4)]
    assert any("hospital-east" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_kept_demo_can_be_joined(kept: KeptDemo) -> None:
    joined = fedmon("ping", "--broker", kept.url, "--json")
    python = subprocess.run(
        [sys.executable, "-c", kept.document["connect"]["python"]],
        env=plain_environment(), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert joined.returncode == 0, joined.stdout
    assert len(json.loads(joined.stdout)["outcomes"]) == 3
    assert python.stdout.count("online") >= 3, python.stderr


def run(*command: str, url: str, folder: Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=researcher_environment(url, folder), cwd=cwd, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _examples(pattern: str) -> list[Path]:
    """The examples that need nobody's approval; tests/docs/test_federated_examples.py has the others."""
    found = sorted((ROOT / "docs/examples").glob(pattern))
    return [path for path in found if not path.name.startswith("federated_")]


@pytest.mark.slow_docs
def test_the_readme_the_examples_and_the_notebooks_run_as_they_stand(
    kept: KeptDemo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    import nbformat
    from nbclient import NotebookClient

    url = kept.url
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
    monkeypatch.setattr(os, "environ", os.environ | researcher_environment(url, tmp_path))
    for notebook in _examples("*.ipynb"):
        with subtests.test(notebook.name):
            document = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]  # nbformat's own
            NotebookClient(document, timeout=60, kernel_name="python3").execute(env=dict(os.environ))
            outputs = json.dumps([cell.get("outputs", []) for cell in document.cells])
            assert "hospital-east" in outputs
            assert "<table" in outputs


def answered(command: list[str]) -> dict[str, str]:
    """Run a query, and return the value of each node that it finds."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {one["metric"]["node"]: one["value"][1] for one in json.loads(done.stdout)["data"]["result"]}


def test_the_five_commands_of_the_page_on_scaling_lead_to_a_store_for_grafana(kept: KeptDemo, tmp_path: Path) -> None:
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
    environ = researcher_environment(kept.url, tmp_path / "researcher")
    with subprocess.Popen(words(record), env=environ, cwd=tmp_path) as recording:
        try:
            metrics = ("fedmon_node_online", "host_cpu_busy_ratio")
            wait_until(lambda: all(len(store.query(metric)) >= 3 for metric in metrics), what="three hospitals")
            online = wait_until(lambda: answered(words(ask)), what="an answer")
        finally:
            recording.send_signal(signal.SIGINT)
            assert recording.wait(30) == 0
            store.kill()

    # Then the store holds the three hospitals, and each command fits the files
    assert online == dict.fromkeys(("hospital-north", "hospital-east", "hospital-south"), "1")
    assert dry.stdout.splitlines()[-1] == ".venv/bin/fedmon demo --keep"
    assert shlex.split(password)[0] == "export"
    variable = shlex.split(password)[1].partition("=")[0]
    assert services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"].startswith(f"${{{variable}:?")
    assert shlex.split(compose) == ["docker", "compose", "-f", "envs/grafana/compose.yaml", "up", "--detach"]
    assert services["victoria-metrics"]["ports"] == ["127.0.0.1:8428:8428"]


def test_a_kept_demo_ends_with_all_its_processes(kept: KeptDemo) -> None:
    code = kept.stop()  # nobody below here needs it

    assert code == 143
    wait_until(lambda: not _alive(kept.group), what="every process of the demo to end")


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_table_of_rounds_has_room_on_80_columns() -> None:
    nodes = ["hospital-north", "hospital-east", "hospital-south"]
    cost = RoundCost(seconds=0.58, bytes_sent=1590, bytes_received=2143, joules=None, sandbox="bubblewrap")
    one = TrainingRound(
        number=10, loss=0.0795, accuracy=0.979, step=1e-10, seconds=1.2, nodes=dict.fromkeys(nodes, cost)
    )

    heads, row = round_columns(nodes), round_row(one, nodes)

    assert heads == ["round", "accuracy", "loss", "took", "north", "east", "south"]
    assert row == ["10", "97.9%", "0.0795", "1.20 s", *["0.58 s 3733 B"] * 3]
    assert sum(max(len(head), len(cell)) + 2 for head, cell in zip(heads, row, strict=True)) <= 80 - 4 + 2
    assert explanation(one) == (
        "at each hospital: seconds, bytes (1590 of the model there, 2143 back), no energy is measured here; "
        "confined at level bubblewrap"
    )
