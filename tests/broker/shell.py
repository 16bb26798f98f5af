"""The shell verbs ``fedmon broker ...`` as a user types them, in processes of their own where that may matter."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support import shell
from tests.support.shell_here import document, fedmon_here

FEDMON = [*shell.FEDMON, "broker"]
foreground = functools.partial(shell.foreground, "broker")


def fedmon_broker(*arguments: str | Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run one verb to its end."""
    if (arguments[0] in ("user", "config") or arguments[:2] == ("repository", "token")) and not typed:
        return fedmon_here("broker", *arguments, environ=os.environ)
    return subprocess.run(
        [*FEDMON, *map(str, arguments)], input=typed, capture_output=True, text=True, timeout=60, check=False
    )


def answer(*arguments: str | Path, typed: str = "") -> dict[str, Any]:
    """Run one verb with ``--json``, which must succeed, and return its document."""
    found: dict[str, Any] = document(fedmon_broker(*arguments, "--json", typed=typed))
    return found
