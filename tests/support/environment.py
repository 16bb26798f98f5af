"""The environment that a test gives to what it starts."""

from __future__ import annotations

import os

ENVIRONMENT_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "COVERAGE_PROCESS_CONFIG")


def plain_environment(**more: str) -> dict[str, str]:
    """Return an environment without settings of fedmon, so that a test says all it means."""
    return {name: os.environ[name] for name in ENVIRONMENT_KEPT if name in os.environ} | more
