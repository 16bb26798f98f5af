"""Real batch systems, started once for all tests that use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.batch.oar import Oar, require_oar
from tests.batch.slurm import SPANK_PBS, Slurm, require_slurm, require_torque

System = TypeVar("System", Slurm, Oar)


@pytest.fixture(scope="session", params=["linuxproc", "cgroup"])
def running_slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """A SLURM in each of its two ways to follow processes."""
    require_slurm(request.param)
    yield from _started(Slurm(request.param))


@pytest.fixture
def slurm(running_slurm: Slurm) -> Iterator[Slurm]:
    """SLURM without jobs."""
    yield running_slurm
    running_slurm.clear()


@pytest.fixture(scope="session")
def running_torque() -> Iterator[Slurm]:
    """SLURM behind the commands of Torque, which gives jobs the variables of PBS."""
    require_torque()
    yield from _started(Slurm("linuxproc", plugins=[SPANK_PBS]))


@pytest.fixture
def torque(running_torque: Slurm) -> Iterator[Slurm]:
    """Torque's commands, and no jobs."""
    yield running_torque
    running_torque.clear()


@pytest.fixture(scope="session")
def oar() -> Iterator[Oar]:
    """An OAR in namespaces of its own."""
    require_oar()
    yield from _started(Oar())


def _started(system: System) -> Iterator[System]:
    try:
        system.start()
        yield system
    finally:
        system.stop()
