"""The product's modules, parsed once: imports, re-exports, classes and functions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASIDE = {"BaseException", "Enum", "Exception", "Flag", "IntEnum", "IntFlag", "NamedTuple", "Protocol", "StrEnum",
         "Struct", "TypedDict"}  # fmt: skip
"""A class with one of these above it may have any number of ours above it."""


@dataclass(frozen=True)
class Import:
    """One imported module; ``name`` is what was imported from it, None for the module itself."""

    module: str
    name: str | None
    bound: str
    at_start: bool
    """Runs when its module is loaded: neither inside a function nor for type checkers only."""


@dataclass
class Module:
    """One module of the product."""

    name: str
    path: Path
    text: str
    imports: list[Import] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    """By name, those at the top of the module."""
    functions: list[tuple[str, int]] = field(default_factory=list)
    """Qualified name and lines of each function."""

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def file(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Parse a file, once for all tests of a process."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def modules() -> Mapping[str, Module]:
    """Parse every module of the product, by its dotted name."""
    found = {}
    for path in sorted((ROOT / "fedmon").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = Module(name, path, path.read_text(encoding="utf-8"))
    for module in found.values():
        _read(module, parsed(module.path), found, "", at_start=True)
    return found


def _read(module: Module, node: ast.AST, names: Mapping[str, object], scope: str, *, at_start: bool) -> None:
    """Note the statements below a node; no import, class or named function is inside an expression."""
    for below in direct_statements(node):
        inner, starts = scope, at_start
        if isinstance(below, (ast.Import, ast.ImportFrom)):
            module.imports += _imports(below, names, at_start=at_start)
        elif isinstance(below, ast.ClassDef):
            inner = f"{scope}{below.name}."
            if not scope:
                module.classes[below.name] = below
        elif isinstance(below, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner, starts = f"{scope}{below.name}.", False
            module.functions.append((f"{scope}{below.name}", (below.end_lineno or below.lineno) - below.lineno + 1))
        elif isinstance(below, ast.If):
            starts = at_start and "TYPE_CHECKING" not in ast.unparse(below.test)
        _read(module, below, names, inner, at_start=starts)


def direct_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements right below a node."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        # The body of a lambda is an expression.
        yield from parts if isinstance(parts := getattr(node, name, None), list) else ()


def _imports(node: ast.Import | ast.ImportFrom, names: Mapping[str, object], *, at_start: bool) -> Iterator[Import]:
    for alias in node.names:
        bound = alias.asname or alias.name
        if isinstance(node, ast.Import):
            if alias.name in names:
                yield Import(alias.name, None, bound, at_start)
        elif f"{node.module}.{alias.name}" in names:
            yield Import(f"{node.module}.{alias.name}", None, bound, at_start)
        elif node.module is not None and node.module in names and not node.level:
            yield Import(node.module, alias.name, bound, at_start)


def graph(*, at_start: bool = False) -> dict[str, set[str]]:
    """Return the modules that each module imports; with ``at_start`` only while it is being loaded."""
    return {
        name: {each.module for each in module.imports if each.module != name and (each.at_start or not at_start)}
        for name, module in modules().items()
    }


def source(module: str, name: str | None) -> tuple[str, str | None]:
    """Follow the re-exports of packages to the module that defines a name."""
    while name is not None and modules()[module].is_package:
        onward = next((each for each in modules()[module].imports if each.bound == name), None)
        if onward is None:
            break
        module, name = onward.module, onward.name
    return module, name


@functools.cache
def bases(module: str, name: str) -> tuple[list[tuple[str, str]], set[str]]:
    """Return what a class is derived from: classes of ours, with their modules, and the names of all others."""
    ours, others = [], set()
    bound = {each.bound: each for each in modules()[module].imports}
    for base in modules()[module].classes[name].bases:
        dotted = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        head, _, tail = dotted.rpartition(".")
        place, which = module, tail
        if (found := bound.get(head or tail)) is not None:
            origin, defined = source(found.module, tail if head else found.name)
            place, which = origin, defined or tail
        if which in modules()[place].classes and (place != module or not head):
            ours.append((place, which))
        else:
            others.add(tail)
    return ours, others


def ancestors(module: str, name: str) -> set[str]:
    """Return the names of all classes above one that are not ours."""
    ours, others = bases(module, name)
    return others.union(*(ancestors(*each) for each in ours))


def above(module: str, name: str) -> int:
    """Count the classes of ours on the longest way up from one."""
    if ancestors(module, name) & ASIDE:
        return 0
    counted = (each for each in bases(module, name)[0] if not ancestors(*each) & ASIDE)
    return max((1 + above(*each) for each in counted), default=0)


def members(module: str, name: str, *, inherited: bool = True) -> set[str]:
    """Return the names of methods and attributes of a class."""
    tree = modules()[module].classes[name]
    found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    targets = (each for node in tree.body for each in (*getattr(node, "targets", ()), getattr(node, "target", None)))
    found |= {each.id for each in targets if isinstance(each, ast.Name)}
    for node in ast.walk(tree) if inherited else ():
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found.union(*(members(*each) for each in bases(module, name)[0] if inherited))


def components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph, each after all that it reaches (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(at: str) -> None:
        index[at] = low[at] = len(index)
        stack.append(at)
        for to in sorted(graph[at]):
            if to not in index:
                visit(to)
            if to in stack:
                low[at] = min(low[at], low[to])
        if low[at] == index[at]:
            start = stack.index(at)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for each in sorted(graph):
        if each not in index:
            visit(each)
    return found


def chains(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the modules on the longest chain from each module; a circle counts with all of its modules."""
    found: dict[str, int] = {}
    for circle in components(graph):
        onward = {to for each in circle for to in graph[each]} - set(circle)
        found |= dict.fromkeys(circle, len(circle) + max((found[to] for to in onward), default=0))
    return found
