"""Files that one ping, sample, START and run pass; docs/architecture.md names them."""

from __future__ import annotations

import functools
import os
import queue
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment import ExperimentController, ResourceAction, ResourceState
from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, plain_environment, write_node_folder, write_node_with_cells
from tests.support.requirements import require
from tests.support.shell_here import document_here
from tests.support.tracing import Trace, traced
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow_docs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
# At most so many files; "Node" includes its launcher and keepers. Inside a sandbox nothing is counted.
# Goals: ping 15 and 15, sample 12 and 12, START 12, run 16 and 24.
BUDGETS = {
    "Ping": {"Researcher": 12, "Node": 11},
    "Sample": {"Node": 10, "Researcher": 11},
    "Experiment START": {"Researcher": 10},
    "Run": {"Researcher": 20, "Node": 34},
}
UNCOUNTED = re.compile(r"(^|/)__init__\.py$|^common/(errors|ids|clock|text|log|actor|backoff)\.py$")
COLLECTORS = "node/collectors"
"""All collectors count as one file."""
PLAN = """import time

from fedmon import TrainingPlan


class Counts(TrainingPlan):
    def run(self, context):
        context.report(loss=0.5, step=1)
        time.sleep(1.1)
        return {"rows": len(list(context.dataset.rows()))}
"""
"""Longer than a second, so that what a node does each second is in every run."""


class TracedNode(NodeProcess):
    """A node whose processes are traced, its launcher and its keepers too."""

    def __init__(self, folder: Path, trace: Trace) -> None:
        super().__init__(folder, environ=plain_environment(PYTHONPATH=str(ROOT)))
        self._trace = trace

    def command(self) -> list[str]:
        """Return the words that start the node under the trace."""
        return traced(super().command(), self._trace.folder)


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Trace]:
    made = Trace(tmp_path / "trace")
    yield made
    made.end()


def usual(windows: list[list[tuple[int, str]]], *, here: bool) -> list[str]:
    """Return the files that ran in two of three windows of the smaller half, in order: periodic work meets fewer."""
    sides = [
        list(dict.fromkeys(
            COLLECTORS if file.startswith(COLLECTORS) else file
            for pid, file in window
            if (pid == os.getpid()) is here and not UNCOUNTED.search(file)
        ))
        for window in windows
    ]  # fmt: skip
    sides = sorted(sides, key=len)[: (len(sides) + 1) // 2]
    count = Counter(file for side in sides for file in side)
    return [file for file in count if 3 * count[file] >= 2 * len(sides)]


def named(journey: str, side: str) -> list[str]:
    """Return the files that the page names for one side of a journey."""
    section = re.search(rf"^## {journey}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    paragraph = re.search(rf"^{side}: (.*?)(?=\n\n|\Z)", section[1] if section else "", re.MULTILINE | re.DOTALL)
    return re.findall(r"`fedmon/([\w/.]+)`", paragraph[1] if paragraph else "")


def check(journey: str, windows: list[list[tuple[int, str]]]) -> None:
    """Compare what ran with the budgets and with the page; a failure prints the paragraphs that belong there."""
    problems = []
    for side, most in BUDGETS[journey].items():
        found, page = usual(windows, here=side == "Researcher"), named(journey, side)
        if len(found) > most:
            problems.append(f"{side}: {len(found)} files ran, {most} may")
        if set(page) != set(found) or len(page) != len(set(page)):
            problems += [f"missing: {sorted(set(found) - set(page))}", f"did not run: {sorted(set(page) - set(found))}"]
            problems.append(f"{side}: {', '.join(f'`fedmon/{file}`' for file in found)}.")
    assert not problems, "\n\n".join([journey, *problems])


def north(folder: Path, broker: Broker) -> Path:
    """Write the folder of a node that measures only when it is asked to, and runs nothing."""
    metrics = {"interval_s": 600.0}
    return write_node_folder(folder / "north", url=broker.url, metrics=metrics)


@contextmanager
def asked(folder: Path, broker: Broker, trace: Trace) -> Iterator[Federation]:
    """Trace a node in a folder and a researcher who has heard of it."""
    with TracedNode(folder, trace) as node:
        trace.begin()
        with Federation(broker.url, folder=folder.parent / "researcher") as fed:
            wait_until(lambda: "north" in fed.ping().ok, what=node.log)
            yield fed


def repeated(trace: Trace, act: Callable[[], object], times: int, *, quiet_s: float) -> list[list[tuple[int, str]]]:
    """Return what ran during each of several calls, and right after."""
    windows = []
    for _ in range(times):
        trace.mark()
        act()
        windows.append(trace.settled(quiet_s=quiet_s))
    return windows


def test_a_ping_passes_the_files_that_are_named(mosquitto: Broker, trace: Trace, tmp_path: Path) -> None:
    with asked(north(tmp_path, mosquitto), mosquitto, trace) as fed:
        windows = repeated(trace, fed.ping, 11, quiet_s=0.2)

    check("Ping", windows)


def test_a_sample_passes_the_files_that_are_named(mosquitto: Broker, trace: Trace, tmp_path: Path) -> None:
    # Not in step with what a node does each second.
    interval_s, windows = 1.37, []
    heard: queue.SimpleQueue[float] = queue.SimpleQueue()
    with (
        asked(north(tmp_path, mosquitto), mosquitto, trace) as fed,
        fed.monitor(lambda sample: heard.put(sample.t), interval_s=interval_s),
    ):
        last = [heard.get(timeout=10) for _ in range(3)][-1]
        for _ in range(7):
            threading.Event().wait(last + interval_s - 0.1 - time.time())
            trace.mark()
            last = heard.get(timeout=10)
            windows.append(trace.settled(quiet_s=0.05))

    check("Sample", windows)


def test_a_start_passes_the_files_that_are_named(trace: Trace, tmp_path: Path) -> None:
    trace.begin()
    with ExperimentController("start", tmp_path) as ec:
        first, *others = (ec.register_resource("local::Process", command=["sleep", "60"]) for _ in range(10))
        for number, guid in enumerate(others, 1):
            ec.register_condition(guid, ResourceAction.START, first, ResourceState.STARTED, f"{4 * number}s")
        ec.deploy(wait_all_ready=False)
        wait_until(functools.partial(is_started, ec, first))
        windows = []
        for guid in others:
            trace.settled(quiet_s=0.5)
            trace.mark()
            if is_started(ec, guid):
                continue  # a busy machine took longer than 4 s
            wait_until(functools.partial(is_started, ec, guid))
            windows.append(trace.settled(quiet_s=0.5))
            if len(windows) == 3:
                break

    assert len(windows) == 3
    check("Experiment START", windows)


def is_started(ec: ExperimentController, guid: int) -> bool:
    return ec.snapshot.resources[guid].state is ResourceState.STARTED


def test_a_run_passes_the_files_that_are_named(mosquitto: Broker, trace: Trace, tmp_path: Path) -> None:
    require(os.geteuid() == 0 and shutil.which("bwrap"), "the page is about a node of root with bubblewrap")
    sections: dict[str, Any] = {"metrics": {"enabled": False}, "runs": {"sandbox": "bubblewrap"}}
    folder = write_node_with_cells(tmp_path / "north", url=mosquitto.url, **sections)
    (folder / "plan.py").write_text(PLAN)
    document_here("node", "plan", "register", folder / "plan.py", "--name", "counts", "--dir", folder)
    with asked(folder, mosquitto, trace) as fed:

        def run() -> None:
            handle = fed.run(folder / "plan.py", tags=["cells"])
            assert handle.result(timeout_s=60) == {"north": {"rows": 3}}

        run()
        windows = repeated(trace, run, 3, quiet_s=1.0)

    check("Run", windows)
