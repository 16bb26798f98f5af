"""The source of a training plan as exact bytes, as it travels."""

from __future__ import annotations

import hashlib
import io
import stat
import tokenize
from pathlib import Path

import msgspec

from fedmon.common.syntax import parsed
from fedmon.common.training_plan import InvalidPlanError, TrainingPlan

MAX_PLAN_BYTES = 1_048_576


class PlanSource(msgspec.Struct, frozen=True, kw_only=True):
    """A training plan as it travels: ``sha256`` is the digest of exactly these bytes."""

    name: str
    source: bytes
    sha256: str


def load_source(plan: Path | str | type[TrainingPlan] | TrainingPlan) -> PlanSource:
    """Return the exact bytes of a plan given as a path, a class or an instance.

    Raises InvalidPlanError for what is missing, unreadable, a folder, empty, over 1 MiB, not UTF-8 or not Python.
    """
    if isinstance(plan, type) and issubclass(plan, TrainingPlan):
        plan = _instance(plan)
    if isinstance(plan, TrainingPlan):
        name, source = type(plan).__name__, plan.code().encode("utf-8", "surrogatepass")
    elif isinstance(plan, str | Path):
        path = Path(plan).expanduser()
        name, source = path.stem, _read(path)
    else:
        raise InvalidPlanError(
            f"a training plan is a path, a subclass of TrainingPlan or an instance of one, not {type(plan).__name__}"
        )
    problem = source_problem(source)
    if problem:
        what = repr(name) if isinstance(plan, TrainingPlan) else str(plan)
        raise InvalidPlanError(f"training plan {what} was not sent: {problem}")
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


def _instance(plan: type[TrainingPlan]) -> TrainingPlan:
    try:
        return plan()
    except Exception as error:
        raise InvalidPlanError(
            f"{plan.__name__}() failed with {type(error).__name__}: {error}; give an instance instead of the class"
        ) from error


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InvalidPlanError(f"training plan {path} is a folder; name the Python file in it")
        if not stat.S_ISREG(mode):
            raise InvalidPlanError(f"training plan {path} is no regular file")
        with path.open("rb") as file:
            return file.read(MAX_PLAN_BYTES + 1)
    except (OSError, ValueError) as error:
        cause = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise InvalidPlanError(f"cannot read training plan {str(path)!r}: {cause}") from error
