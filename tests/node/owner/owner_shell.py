"""The owner's shell: verbs in processes of their own or in that of the test."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.node_process import fedmon, plain_environment
from tests.support.shell_here import document, fedmon_here

Ran = subprocess.CompletedProcess[str]


def node(folder: Path, *words: str, environ: Mapping[str, str] | None = None) -> Ran:
    """Run `fedmon node ...` on a folder, inside this process where that makes no difference."""
    # The one becomes the node, the other leaves its own process out when it looks for those of a job.
    run = fedmon if words[0] == "start" or (words[0] == "job" and "--pid" not in words) else fedmon_here
    return run("node", *words, "--dir", str(folder), environ=plain_environment(**(environ or {})))


def told(folder: Path, *words: str, code: int = 0, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a verb with --json and return its one document."""
    found: dict[str, Any] = document(node(folder, *words, "--json", environ=environ), code=code)
    return found


def refused(folder: Path, *words: str, code: int, environ: Mapping[str, str] | None = None) -> str:
    """Run a verb that must fail with ``code``; return the one line that it says on standard error."""
    ran = node(folder, *words, environ=environ)
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stdout + ran.stderr
    assert ran.stderr.startswith("fedmon: ")
    assert ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr
