"""Parts that a machine may lack: skipped aloud, or a failure where everything must run."""

from __future__ import annotations

import os

import pytest


def require(present: object, reason: str) -> None:
    """Skip the test when something is missing; fail instead when FEDMON_REQUIRE_ALL=1."""
    if present:
        return
    if os.environ.get("FEDMON_REQUIRE_ALL") == "1":
        pytest.fail(f"FEDMON_REQUIRE_ALL=1 and {reason}", pytrace=False)
    pytest.skip(reason)
