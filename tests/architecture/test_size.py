"""The product gets smaller: each package has a budget of lines, modules and statements that only falls."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN_SUFFIXES = {".py", ".js", ".css", ".html", ".sql"}

BUDGETS = {
    ".": (546, 4, 295),
    "broker": (1957, 10, 1110),
    "common": (8047, 49, 4528),
    "compat": (2865, 18, 1883),
    "demo": (716, 5, 519),
    "doctor": (408, 2, 270),
    "experiment": (10596, 46, 7004),
    "node": (26037, 119, 16437),
    "plan": (1268, 8, 845),
    "report": (8972, 50, 5610),
    "researcher": (9786, 46, 6413),
}  # fmt: skip
"""Lines with docstrings and blanks, modules, and statements of each package, modules of ``fedmon`` itself as "."."""
SMALL_MODULES = 30
"""Modules of less than 50 lines, ``__init__`` not counted."""
SUPPRESSIONS = {"noqa": 209, "type: ignore": 43}


def size(package: str) -> tuple[int, int, int]:
    """Count the lines, modules and statements of a package."""
    folder = ROOT / "fedmon" / package
    files = [
        path for path in (folder.iterdir() if package == "." else folder.rglob("*")) if path.suffix in OWN_SUFFIXES
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    modules = [text for path, text in texts.items() if path.suffix == ".py"]
    statements = sum(isinstance(node, ast.stmt) for text in modules for node in ast.walk(ast.parse(text)))
    return sum(text.count("\n") for text in texts.values()), len(modules), statements


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_stays_within_its_budget(package: str) -> None:
    found = size(package)

    over = [
        (what, now, most)
        for what, now, most in zip(("lines", "modules", "statements"), found, BUDGETS[package], strict=True)
        if now > most
    ]
    assert over == [], "take something away, or show in the commit which issue grants more"


def test_every_package_has_a_budget() -> None:
    packages = {path.parent.name for path in (ROOT / "fedmon").glob("*/__init__.py")}

    assert packages | {"."} == set(BUDGETS)


def test_small_modules_and_suppressed_checks_get_fewer() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "fedmon").rglob("*.py")}
    small = [path for path, text in texts.items() if text.count("\n") < 50 and path.name != "__init__.py"]
    found = {word: sum(len(re.findall(f"# {word}", text)) for text in texts.values()) for word in SUPPRESSIONS}

    assert len(small) <= SMALL_MODULES
    assert {word: count for word, count in found.items() if count > SUPPRESSIONS[word]} == {}
