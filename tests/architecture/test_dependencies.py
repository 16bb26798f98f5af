"""Every package that the code imports is declared, where it is needed."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedmon"
EXTRAS = ("broker", "report")
"""Each is named after the folder of fedmon that needs it."""
FOR_ARRAYS = "runs"
"""Values of a run may hold arrays anywhere; only what meets one imports what this extra brings."""
WITHOUT_AN_IMPORT = {"archspec", "nvidia-ml-py"}
"""Declared for collectors that name their processor and graphics card."""


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """Return by package which distributions bring it; it takes as long as the import of a hundred modules."""
    return importlib.metadata.packages_distributions()


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str) -> set[str]:
    """Return the distributions that an installation with one extra brings; "" is none."""
    requirements = [Requirement(text) for text in importlib.metadata.requires("fedmon") or []]
    return {
        plain(requirement.name)
        for requirement in requirements
        if requirement.marker is None or (extra and requirement.marker.evaluate({"extra": extra}))
    }


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below one, but for those that only a type checker reads; no import is in an expression."""
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for name in ("orelse",) if is_for_types else ("body", "handlers", "orelse", "finalbody", "cases"):
        # The body of a lambda is an expression.
        for below in parts if isinstance(parts := getattr(node, name, None), list) else ():
            yield below
            yield from statements(below)


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return the distributions whose packages a file imports outside of type checking."""
    heads = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            heads |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            heads.add(node.module.partition(".")[0])
    foreign = heads - set(sys.stdlib_module_names) - {"fedmon"}
    known = distributions()
    return frozenset(plain(known[head][0]) if head in known else head for head in foreign)


def extra_of(path: Path) -> str:
    """Return the extra that a file may use: that of its folder, where it has one."""
    folder = path.relative_to(PACKAGE).parts[0]
    return folder if folder in EXTRAS else ""


def test_each_import_belongs_to_a_declared_package() -> None:
    of_extra = {extra: declared(extra) | declared(FOR_ARRAYS) for extra in ("", *EXTRAS)}
    undeclared = {
        str(path.relative_to(ROOT)): missing
        for path in PACKAGE.rglob("*.py")
        if (missing := imported(path) - of_extra[extra_of(path)])
    }

    assert undeclared == {}


def test_each_declared_package_is_imported() -> None:
    used = frozenset().union(*(imported(path) for path in PACKAGE.rglob("*.py")))

    assert set().union(*map(declared, (*EXTRAS, FOR_ARRAYS))) - used <= WITHOUT_AN_IMPORT
