"""Parts of a node that many tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.node.registers.database import Database
from fedmon.node.requests.audit import Audit
from tests.node.jobs_real import Program
from tests.node.jobs_trees import ProcTree


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    """The audit of a node."""
    with Audit(tmp_path) as opened:
        yield opened


@pytest.fixture
def database(audit: Audit, tmp_path: Path) -> Iterator[Database]:
    """The register of a node."""
    with Database(tmp_path / "state.sqlite", audit) as opened:
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
