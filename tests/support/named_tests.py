"""What an index of tests names: whether each is there, and runs everywhere."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Decorators of a whole test; a parameter may well be one that runs elsewhere.
_LEFT_OUT = re.compile(r"^(?:pytestmark = .*)?pytest\.mark\.(?:skip|skipif|xfail|soak|batch|slow_docs)\b")


def problem_of(node_id: str) -> str:
    """Return why a test, as "file::name", does not run everywhere; "" where it does."""
    file, _, name = node_id.partition("::")
    if not (ROOT / file).is_file():
        return f"there is no file {file}"
    marks = _functions_of(file).get(name)
    if marks is None:
        return f"{file} has no test {name}"
    left_out = [mark for mark in marks if _LEFT_OUT.search(mark)]
    return f"{node_id} is left out: {left_out[0]}" if left_out else ""


@functools.cache
def _functions_of(file: str) -> dict[str, list[str]]:
    """Return the tests of a file, each with its decorators."""
    tree = ast.parse((ROOT / file).read_text())
    marks = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    of_file = [mark for mark in marks if mark.startswith("pytestmark")]
    return {
        node.name: [*of_file, *map(ast.unparse, node.decorator_list)]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
