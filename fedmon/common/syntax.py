"""Python source read as a tree, by one thread at a time."""

from __future__ import annotations

import ast
import threading

# Some releases of Python 3.11 and 3.12 count the depth of a tree for all threads together: of two that read at the same
# time one may get "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
_reading = threading.Lock()


def parsed(source: str) -> ast.Module:
    """Return the tree of a source. Raises SyntaxError, ValueError, RecursionError and MemoryError as `ast.parse`."""
    with _reading:
        return ast.parse(source)
