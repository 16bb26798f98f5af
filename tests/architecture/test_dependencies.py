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
from packaging.version import Version

from tests.architecture.modules import direct_statements, parsed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedmon"
EXTRAS = ("broker", "report")
"""Each is named after the folder of fedmon that needs it."""
FOR_ARRAYS = "runs"
"""Values of a run may hold arrays anywhere; only what meets one imports what this extra brings."""
WITHOUT_AN_IMPORT = {"archspec", "fonttools", "h11", "nvidia-ml-py", "pillow"}
"""Declared for collectors that name their processor and graphics card, and for what uvicorn reads with, and matplotlib
and fpdf2 write pictures and fonts with."""
FIRST_SAFE = {
    "fonttools": ("4.60.2", "CVE-2025-66034"),
    "fpdf2": ("2.8.8", "CVE-2026-114610"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "numpy": ("1.22.2", "CVE-2021-41495"),
    "pillow": ("13.0.0", "CVE-2026-112393"),
    "psutil": ("5.6.6", "CVE-2019-18874"),
    "pyarrow": ("23.0.1", "CVE-2026-25087"),
    "pypdf": ("6.21.4", "CVE-2026-119203"),
    "pytest": ("9.0.3", "CVE-2025-71176"),
    "python-multipart": ("0.0.31", "CVE-2026-53540"),
    "pyyaml": ("5.4", "CVE-2020-14343"),
    "requests": ("2.33.0", "CVE-2026-25645"),
    "scikit-learn": ("1.5.0", "CVE-2024-5206"),
    "setuptools": ("84.1.0", "GHSA-xmj3-9gf7-h52w"),
    "starlette": ("1.3.1", "CVE-2026-54283"),
    "urllib3": ("2.8.0", "CVE-2026-97687"),
    "uvicorn": ("0.11.7", "CVE-2020-7695"),
}
"""The first release without a published advisory, and the last advisory, as known on 2026-11-22."""


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
    for below in getattr(node, "orelse", ()) if is_for_types else direct_statements(node):
        yield below
        yield from statements(below)


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return the distributions whose packages a file imports outside of type checking."""
    heads = set()
    for node in statements(parsed(path)):
        if isinstance(node, ast.Import):
            heads |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            heads.add(node.module.partition(".")[0])
    foreign = heads - set(sys.stdlib_module_names) - {"fedmon"}
    known = distributions()
    return frozenset(plain(known[head][0]) if head in known else head for head in foreign)


def extra_of(path: Path) -> str:
    """Return the extra that a file may use: that of its folder, where it has one, and "report" for topologies."""
    within = path.relative_to(PACKAGE)
    if within.as_posix() == "compat/nepi/topology.py":
        return "report"
    return within.parts[0] if within.parts[0] in EXTRAS else ""


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


def test_no_lower_bound_admits_a_release_with_a_published_advisory() -> None:
    lowest = {}
    for requirement in map(Requirement, importlib.metadata.requires("fedmon") or []):
        bounds = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        lowest[plain(requirement.name)] = max(bounds, default=Version("0"))

    assert FIRST_SAFE.keys() <= lowest.keys()
    assert {name: advisory for name, (safe, advisory) in FIRST_SAFE.items() if lowest[name] < Version(safe)} == {}
