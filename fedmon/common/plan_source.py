"""The source of a training plan as exact bytes, as it travels."""

from __future__ import annotations

import ast
import hashlib
import io
import stat
import tempfile
import threading
import tokenize
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fedmon.common.training_plan import InvalidPlanError

MAX_PLAN_BYTES = 1_048_576
# Some releases of Python 3.11 and 3.12 count the depth of a tree for all threads together: of two that read at the same
# time one may get "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
_reading = threading.Lock()


class SavablePlan(Protocol):
    """A training plan that writes its own source: `TrainingPlan`, or the plan classes of Fed-BioMed 4.4."""

    def init_dependencies(self) -> list[str]:
        """Return the import lines that the class needs."""

    def add_dependency(self, dependencies: Any, /) -> object:
        """Add import lines to this instance."""

    def save_code(self, path: Any, /) -> object:
        """Write the source to a file."""


Plan = str | Path | type[SavablePlan] | SavablePlan
_METHODS = ("init_dependencies", "add_dependency", "save_code")


class PlanSource(msgspec.Struct, frozen=True, kw_only=True):
    """A training plan as it travels: ``sha256`` is the digest of exactly these bytes."""

    name: str
    source: bytes
    sha256: str


def load_source(plan: Plan) -> PlanSource:
    """Return the exact bytes of a plan given as a path, or written by the ``save_code`` of a class or an instance.

    Raises InvalidPlanError for a file that is missing, unreadable, a folder, empty, over 1 MiB, not UTF-8 or not
    Python.
    """
    if isinstance(plan, str | Path):
        name, shown, source = Path(plan).stem, str(plan), read_plan(Path(plan))
    elif all(callable(getattr(plan, method, None)) for method in _METHODS):
        name = plan.__name__ if isinstance(plan, type) else type(plan).__name__
        shown, source = repr(name), _saved(plan)
    else:
        raise InvalidPlanError(
            "a training plan is a path, or a class or instance with the methods "
            f"{', '.join(_METHODS)} such as TrainingPlan, not {type(plan).__name__}"
        )
    problem = source_problem(source)
    if problem:
        raise InvalidPlanError(f"training plan {shown} cannot be used: {problem}")
    return PlanSource(name=name, source=source, sha256=hashlib.sha256(source).hexdigest())


def source_problem(source: bytes) -> str | None:
    """Say why bytes cannot be the source of a plan, or None when they can; nothing of them is executed."""
    if not source.strip():
        return "it is empty"
    if len(source) > MAX_PLAN_BYTES:
        return f"it has {len(source)} bytes, more than {MAX_PLAN_BYTES}"
    try:
        text = source.decode("utf-8-sig")
        # Another declared encoding would let the bytes that run differ from the text that an owner reads.
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        if encoding not in ("utf-8", "utf-8-sig"):
            return f"it declares encoding {encoding}; a plan is written in UTF-8"
        parsed(text)
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 text (byte {error.start})"
    except SyntaxError as error:
        return f"it is not Python: {error.msg} (line {error.lineno})"
    except (RecursionError, MemoryError):
        return "it is nested too deeply for Python"
    except ValueError as error:
        return f"it is not Python: {error}"
    return None


def parsed(source: str) -> ast.Module:
    """Return the tree of a source. Raises SyntaxError, ValueError, RecursionError and MemoryError as `ast.parse`."""
    with _reading:
        return ast.parse(source)


def _saved(plan: type[SavablePlan] | SavablePlan) -> bytes:
    if isinstance(plan, type):
        plan = _instance(plan)
    with tempfile.TemporaryDirectory(prefix="fedmon-plan-") as folder:
        path = Path(folder, "plan.py")
        plan.save_code(str(path))
        if not path.exists():
            raise InvalidPlanError(f"save_code of {type(plan).__name__} wrote no file at the path that it was given")
        return read_plan(path)


def _instance(plan: type[SavablePlan]) -> SavablePlan:
    try:
        made = plan()
        made.add_dependency(made.init_dependencies())
    except InvalidPlanError:
        raise
    except Exception as error:
        raise InvalidPlanError(
            f"{plan.__name__}() failed with {type(error).__name__}: {error}; give an instance instead of the class"
        ) from error
    return made


def read_plan(path: Path, max_bytes: int = MAX_PLAN_BYTES) -> bytes:
    """Return the bytes of a plan's file, of a larger one ``max_bytes`` and one more. Raises InvalidPlanError."""
    try:
        path = path.expanduser()
        if stat.S_ISREG(path.stat().st_mode):  # opening a pipe waits for its writer
            with path.open("rb") as file:
                return file.read(max_bytes + 1)
    except (OSError, ValueError, RuntimeError) as error:
        cause = getattr(error, "strerror", "") or str(error)
        raise InvalidPlanError(f"cannot read training plan {str(path)!r}: {cause}") from error
    raise InvalidPlanError(f"training plan {path} is not a regular file; name a Python file")
