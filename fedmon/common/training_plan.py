"""The base class that training plans are written on; it needs nothing but Python, also where a plan runs."""

from __future__ import annotations

from fedmon.common.errors import InvalidInputError, StorageError

# A plan imports this file before it runs, and typing with the rest here would cost it more than all else together.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from fedmon.plan.context import Context

_OWN_DEPENDENCIES = ("import fedmon", "from fedmon import TrainingPlan")


class InvalidPlanError(InvalidInputError):
    """A training plan cannot be sent: it is unreadable, too large, or no Python."""


class TrainingPlan:
    """Base class of training plans; the source of a subclass, with its import lines, is what nodes get.

    A file that is sent as a plan has exactly one subclass, which can be made without arguments.
    """

    def run(self, context: Context) -> Mapping[str, Any]:
        """Do the work on a node, and return what leaves it: names with JSON values and numpy arrays.

        ``context`` has the dataset, the arguments and the inputs. To be overridden.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method run(self, context)")

    def init_dependencies(self) -> list[str]:
        """Return the import lines that the class needs; for subclasses to override."""
        return []

    def add_dependency(self, dependencies: Sequence[str]) -> None:
        """Add import lines to this instance. Raises InvalidPlanError for what is no import line."""
        for line in dependencies:
            _check_import(line)
        added = self.__dict__.setdefault("_added_dependencies", [])
        added.extend(line for line in dependencies if line not in added)

    def dependencies(self) -> list[str]:
        """Return every import line, without repeats. Raises InvalidPlanError for what is no import line."""
        # The list of additions is looked up by name because a subclass may not call our constructor.
        lines = [*_OWN_DEPENDENCIES, *self.init_dependencies(), *self.__dict__.get("_added_dependencies", [])]
        for line in lines:
            _check_import(line)
        return list(dict.fromkeys(lines))

    def code(self) -> str:
        """Return the import lines and the source of the class. Raises InvalidPlanError when Python kept no source."""
        from fedmon.common.class_source import class_source

        try:
            source = class_source(type(self))
        except LookupError as error:
            raise InvalidPlanError(
                f"the source of class {type(self).__name__} is not available ({error}): "
                "write it into a file and give its path"
            ) from None
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
    raise InvalidPlanError(f"dependency {line!r} is no import line such as 'import numpy as np'")
