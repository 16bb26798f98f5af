"""Fixtures of the tests of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.job.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine of files without processes, with cgroups of version 1."""
    return Machine(tmp_path)
