"""An experiment for the tests that need no more of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.experiment import ExperimentController
from tests.experiment.own_types import experiment


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    with experiment(tmp_path) as made:
        yield made
