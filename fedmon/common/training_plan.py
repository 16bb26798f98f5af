"""The base class that training plans are written on; it needs nothing but Python, also where a plan runs."""

from __future__ import annotations

from fedmon.common.errors import InvalidInputError, StorageError

# A plan imports this file before it runs, and typing with the rest here would cost it more than all else together.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any, ClassVar

    from fedmon.plan.context import PlanContext

_OWN_DEPENDENCIES = ("import fedmon", "from fedmon import TrainingPlan")


class InvalidPlanError(InvalidInputError):
    """A training plan cannot be sent: it is unreadable, too large, or no Python."""


class TrainingPlan:
    """Base class of training plans; nodes get the source of a subclass, with its import lines.

    A file that is sent as a plan has exactly one subclass, which can be made without arguments.

    Class attributes declare its use, as literals that a node reads without running the plan; an approval grants these
    unless its owner says otherwise. ``arguments`` has a rule for each argument; a plan without it takes none::

        arguments = {
            "bins": range(5, 51),           # a whole number of the range
            "rate": float,                  # any int, float, str or bool
            "task": ["describe", "step"],   # one of these values
            "columns": [str],               # a list, each of whose values follows the rule
        }

    ``scalars`` names the values that it reports, ``texts`` the entries of its result with texts of more than 64
    characters, and ``values`` is the most numbers in a result.
    """

    arguments: ClassVar[Mapping[str, Any]] = {}
    scalars: ClassVar[Sequence[str]] = ()
    texts: ClassVar[Sequence[str]] = ()
    values: ClassVar[int | None] = None

    def run(self, context: PlanContext) -> Mapping[str, Any]:
        """Do the work on a node, and return the result: names with JSON values and numpy arrays.

        ``context`` has the dataset, the arguments and the inputs. To be overridden.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method run(self, context)")

    def init_dependencies(self) -> list[str]:
        """Return the import lines that the class needs; for subclasses to override."""
        return []

    def add_dependency(self, dependencies: Sequence[str]) -> None:
        """Add import lines to this instance. Raises InvalidPlanError for any other line."""
        for line in dependencies:
            _check_import(line)
        added = self.__dict__.setdefault("_added_dependencies", [])
        added.extend(line for line in dependencies if line not in added)

    def dependencies(self) -> list[str]:
        """Return every import line, without repeats. Raises InvalidPlanError for any other line."""
        # The list of additions is looked up by name because a subclass may not call our constructor.
        lines = [*_OWN_DEPENDENCIES, *self.init_dependencies(), *self.__dict__.get("_added_dependencies", [])]
        for line in lines:
            _check_import(line)
        return list(dict.fromkeys(lines))

    def code(self) -> str:
        """Return the import lines and the source of the class. Raises InvalidPlanError when Python kept no source."""
        source = class_source(type(self))
        return "\n".join(self.dependencies()) + "\n\n\n" + source

    def save_code(self, path: Path | str) -> Path:
        """Write the code to a file and return its path. Raises InvalidPlanError, or StorageError naming the path."""
        from pathlib import Path as _Path

        target = _Path(path)
        code = self.code()
        try:
            target.write_bytes(code.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise StorageError(f"cannot write the training plan to {target}: {error.strerror}") from error
        return target


def _check_import(line: object) -> None:
    import ast

    if isinstance(line, str):
        try:
            statements = ast.parse(line).body
        except (SyntaxError, ValueError):
            statements = []
        if statements and all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in statements):
            return
    raise InvalidPlanError(f"dependency {line!r} is not an import line such as 'import numpy as np'")


def class_source(kind: type) -> str:
    """Return the source of a class, not indented, ending with a newline; of one typed into a notebook too.

    Raises InvalidPlanError if Python kept no source.
    """
    import inspect
    import textwrap

    try:
        found = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        # A notebook's module has no file, but each cell is kept as lines under a name that its functions know.
        found = next(_in_texts(kind, _cells(kind)), "")
    if not found:
        raise InvalidPlanError(
            f"the source of class {kind.__name__} is not available (Python keeps no source of typed code): "
            "write it into a file and give its path"
        )
    return found if found.endswith("\n") else found + "\n"


def _cells(kind: type) -> Iterator[str]:
    """Return texts that may define the class, the likeliest first."""
    import inspect
    import linecache
    import sys

    for value in vars(kind).values():
        function = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(function):
            yield "".join(linecache.getlines(function.__code__.co_filename))
    history = getattr(sys.modules.get(kind.__module__), "In", None)
    if isinstance(history, list):
        yield from (cell for cell in reversed(history) if isinstance(cell, str))


def _in_texts(kind: type, texts: Iterator[str]) -> Iterator[str]:
    import ast

    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in reversed(tree.body):
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                yield "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n"
