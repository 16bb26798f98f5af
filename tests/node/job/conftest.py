"""Fixtures of the tests of jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs already."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()
