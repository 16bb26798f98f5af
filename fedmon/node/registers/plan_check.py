"""Read the code of one training plan in a separate process that may use little time and memory.

Run as a script with the bytes of the plan on stdin. Prints lines with a JSON object: ``parses``, ``minified_sha256``,
``problem`` and ``declared``. The last one counts; an earlier one has the declarations, in case the minified form
takes too much. It imports nothing of ours, so that it runs isolated from paths, environment and user site.
"""

from __future__ import annotations

import ast
import hashlib
import json
import resource
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

CPU_S = 5
MEMORY_BYTES = 512 * 1024 * 1024
MAX_DECLARED_BYTES = 16_384
MAX_RULE_BYTES, MAX_RULE_DEPTH = 4_096, 4
TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
FORMS = (
    "a rule is int, float, str, bool, range(5, 51), a list of the admitted values such as ['mean', 'sum'], or a list "
    f"of one rule such as [float] for a list of such values (at most {MAX_RULE_DEPTH} deep, of {MAX_RULE_BYTES} bytes)"
)


def main() -> None:
    """Check the plan on stdin and print the findings, the verdict last."""
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    source = sys.stdin.buffer.read()
    warnings.simplefilter("ignore")
    parses, digest, problem, declared = False, None, "", dict[str, Any]()
    try:
        tree = ast.parse(source)
        parses = True
        declared, problem = declarations(tree)
        _print(None, problem or "its minified form could not be made", declared)
        digest = minified_sha256(source)
    except (SyntaxError, ValueError) as error:
        problem = f"not Python: {error}"
        if isinstance(error, SyntaxError) and error.lineno is not None:
            problem = f"line {error.lineno}: {error.msg}"
    except RecursionError:
        problem = "the code is nested too deeply to be read"
    except MemoryError:
        problem = f"the code is too large or too deeply nested to be read within {MEMORY_BYTES >> 20} MB"
    _print(digest, problem, declared, parses=parses)


def _print(digest: str | None, problem: str, declared: dict[str, Any], *, parses: bool = True) -> None:
    found = {"parses": parses, "minified_sha256": digest, "problem": problem, "declared": declared}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def declarations(tree: ast.Module) -> tuple[dict[str, Any], str]:
    """Return the declarations of the plan's class, and the problem with them; with a problem it declares nothing."""
    found: dict[str, Any] = {}
    for kind in tree.body:
        for statement in kind.body if isinstance(kind, ast.ClassDef) and kind.bases else ():
            name, value = _assigned(statement)
            if name not in _READERS or value is None:
                continue
            if name in found:
                return {}, f"line {statement.lineno}: {name} is declared twice"
            try:
                found[name] = _READERS[name](value)
            except (ValueError, TypeError, SyntaxError, RecursionError) as error:
                return {}, f"line {statement.lineno}: {name} cannot be read as a declaration: {error}"
    if len(json.dumps(found)) > MAX_DECLARED_BYTES:
        return {}, f"the declarations take more than {MAX_DECLARED_BYTES} bytes"
    return found, ""


def rule(node: ast.expr) -> str | list[Any]:
    """Return the canonical form of an argument's rule: its text, or the list of the admitted values.

    Raises ValueError for anything else.
    """
    found = _form(node, MAX_RULE_DEPTH)
    if len(json.dumps(found)) > MAX_RULE_BYTES:
        raise ValueError(f"it is too large: {FORMS}")
    return found


def _form(node: ast.expr, depth: int) -> str | list[Any]:
    match node:
        case ast.Name(id=name) if name in TYPES:
            return name
        case ast.Call(func=ast.Name(id="range"), args=[_, *_] as bounds, keywords=[]) if len(bounds) <= 3:
            numbers = [ast.literal_eval(each) for each in bounds]
            if all(type(each) is int for each in numbers) and numbers[2:] != [0]:
                return f"range({', '.join(map(str, numbers))})"
        case ast.List(elts=[each]) if depth and isinstance(each, ast.Name | ast.Call | ast.List):
            return f"[{_form(each, depth - 1)}]"
        case ast.List(elts=[_, *_] as elements) | ast.Tuple(elts=[_, *_] as elements):
            values = [ast.literal_eval(each) for each in elements]
            if all(isinstance(each, str | int | float | None) for each in values):
                json.dumps(values, allow_nan=False)  # raises ValueError
                return values
    raise ValueError(f"{ast.unparse(node)[:80]!r} is no rule: {FORMS}")


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
    return "", None


def _rules(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Dict):
        raise TypeError("it is a dict of literals, such as {'bins': range(5, 51)}")
    names = [None if key is None else ast.literal_eval(key) for key in node.keys]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError("the keys are the names of arguments, each once")
    return {str(name): rule(value) for name, value in zip(names, node.values, strict=True)}


def _names(node: ast.expr) -> list[str]:
    names = ast.literal_eval(node)
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it is a tuple of names, such as ('loss', 'accuracy')")
    return list(names)


def _count(node: ast.expr) -> int:
    number = ast.literal_eval(node)
    if type(number) is not int or number < 0:
        raise ValueError("it is a number of values, such as 12")
    return number


_READERS: Mapping[str, Callable[[ast.expr], Any]] = {
    "arguments": _rules,
    "scalars": _names,
    "texts": _names,
    "values": _count,
}


def minified_sha256(source: bytes) -> str | None:
    """Return the digest of the code without comments, layout and ``(object)``; None when that form cannot be made."""
    import python_minifier

    try:
        minified = python_minifier.minify(
            source,
            remove_annotations=False,
            combine_imports=False,
            remove_pass=False,
            hoist_literals=False,
            rename_locals=False,
            convert_posargs_to_args=False,
            remove_explicit_return_none=False,
            remove_builtin_exception_brackets=False,
            constant_folding=False,
            remove_dead_branches=False,
        )
    except python_minifier.UnstableMinification:
        return None
    return hashlib.sha256(minified.encode("utf-8", "surrogatepass")).hexdigest()


if __name__ == "__main__":
    main()
