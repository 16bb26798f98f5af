"""What a plan may do, and what its levels leave working."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.wire.runs import Level
from fedmon.node.runs.sandbox import bubblewrap, landlock
from tests.node.runs.sandboxes import LIMITS, NOBODY, machine, python_for
from tests.support.requirements import require

PROGRAMS = Path(__file__).with_name("programs")
EVERYWHERE = [
    *("descriptors", "threads", "arrays", "own_python", "child_and_pipe", "files", "dataset"),
]
WITH_LANDLOCK = [*EVERYWHERE, "ended_child"]
WITH_NAMESPACES = [*WITH_LANDLOCK, "pool", "manager"]


@contextlib.contextmanager
def busy(user: int) -> Iterator[None]:
    """Have a user who does more than a plan may; its own are what is counted."""
    script = (
        "import threading; stop = threading.Event();"
        f"[threading.Thread(target=stop.wait).start() for _ in range({LIMITS.processes})]; print(flush=True);"
        "input(); stop.set()"
    )
    words = [python_for(user), "-c", script]
    with subprocess.Popen(words, user=user, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.communicate(b"\n")


@pytest.mark.parametrize(
    ("level", "user"),
    [
        ("bubblewrap", 0),
        pytest.param("bubblewrap", NOBODY, marks=pytest.mark.soak),
        ("landlock", NOBODY),
        pytest.param("landlock", 0, marks=pytest.mark.soak),
        pytest.param("limits", 0, marks=pytest.mark.soak),
        pytest.param("limits", NOBODY, marks=pytest.mark.soak),
    ],
)
def test_ordinary_programs_work_at_every_level(level: Level, user: int) -> None:
    require(os.geteuid() == 0, "only root starts sandboxes as others")
    require(level != "bubblewrap" or bubblewrap.program(), "bubblewrap is not installed")
    require(level != "landlock" or landlock.abi(), "this kernel has no Landlock")
    tried = {"bubblewrap": WITH_NAMESPACES, "landlock": WITH_LANDLOCK, "limits": EVERYWHERE}[level]
    with machine(user) as target:
        target.lay(PROGRAMS / "ordinary.py")
        order = target.order(level)
        question = {
            "tried": [*tried, *(["packages_in_own_python"] if user == 0 else [])],
            "path": order.interpreter.path,
            "data": f"{bubblewrap.data_path(order)}/data.csv",
        }
        with busy(user):
            ended = target.run(order, question)
    assert (ended.stdout, ended.returncode) == ("", 0), ended.stderr
