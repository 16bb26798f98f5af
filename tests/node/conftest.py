"""Parts of a node that many tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.node.registers.database import Database
from tests.node.jobs_real import Program
from tests.node.jobs_trees import ProcTree


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """The register of a node."""
    with Database(tmp_path / "state.sqlite") as opened:
        yield opened


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    """A /proc of files, without any process."""
    return ProcTree(tmp_path / "proc")


@pytest.fixture
def program() -> Iterator[Program]:
    """A program that runs already."""
    with Program() as started:
        yield started
