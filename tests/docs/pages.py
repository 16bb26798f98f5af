"""The pages that people read, and the texts of programs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.modules import parsed

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "broker/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def texts(source: Path) -> Iterator[str]:
    """Yield the texts in a file of Python, docstrings too, what is filled in as X."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
