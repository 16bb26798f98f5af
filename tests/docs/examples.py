"""The examples of the documentation as modules, and the demo's tables as they lie in the checkout."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.environment import stranger_environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
TABLES = {
    f"hospital-{name}": ROOT / f"fedmon/demo/data/breast_cancer_{name}.csv" for name in ("north", "east", "south")
}


def example(name: str) -> Any:
    """Return one of the scripts below docs/examples as a module."""
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example_environment(url: str, folder: Path) -> dict[str, str]:
    """Return the environment of a stranger who tries the examples in a folder."""
    return stranger_environment(url, folder / "researcher", FEDMON_RESEARCHER_TIMEOUT_S="30", TMPDIR=str(folder))


def printed(script: str, *words: str, folder: Path, url: str = "mqtt://localhost") -> list[str]:
    """Run one of the scripts below docs/examples in a folder, and return the lines that it prints."""
    command, environ = [sys.executable, str(EXAMPLES / f"{script}.py"), *words], example_environment(url, folder)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def column(name: str, *hospitals: str) -> list[str]:
    """Return the cells of one column, of all hospitals one after another where none is named."""
    cells: list[str] = []
    for hospital in hospitals or TABLES:
        with TABLES[hospital].open(newline="") as table:
            cells += [row[name] for row in csv.DictReader(table)]
    return cells


def numbers(name: str, *hospitals: str) -> npt.NDArray[np.float64]:
    """Return one column as numbers."""
    return np.array(column(name, *hospitals), dtype=np.float64)
