"""The environment that a test gives to what it starts."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "COVERAGE_PROCESS_CONFIG")


def plain_environment(**more: str) -> dict[str, str]:
    """Return an environment without settings of fedmon, so that a test says all it means."""
    return {name: os.environ[name] for name in ENVIRONMENT_KEPT if name in os.environ} | more


def stranger_environment(url: str, folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a researcher who follows the documentation, which asks for no id."""
    return plain_environment(FEDMON_BROKER_URL=url, FEDMON_RESEARCHER_FOLDER=str(folder), **more)


def researcher_environment(url: str, folder: Path, researcher_id: str = "alice", **more: str) -> dict[str, str]:
    """Return the environment of a researcher who set nothing but the broker, a folder and an id."""
    return stranger_environment(url, folder, FEDMON_RESEARCHER_ID=researcher_id, **more)
