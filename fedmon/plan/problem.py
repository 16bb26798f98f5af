"""What went wrong with a plan, in words of bounded length: what kind, why, and where in the plan."""

from __future__ import annotations

import builtins
import sys

from fedmon.plan import frames
from fedmon.plan.context import shortened
from fedmon.plan.plan_class import MODULE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_MAX_ENTRIES = 40
"""Calls that a traceback shows, the innermost: each may bring a line of up to a megabyte with it."""


class Problem(Exception):  # noqa: N818 - it carries what is told of an error, and is none itself
    """The run is over without a result; ``fields`` are those of the frame, ``exit_code`` that of the process."""

    def __init__(self, fields: dict[str, Any], *, exit_code: int = 1) -> None:
        super().__init__(fields["reason"])
        self.fields, self.exit_code = fields, exit_code


def refused(reason: str, *, state: str = frames.FAILED, kind: str = "", message: str | None = None) -> Problem:
    """Return a problem that has no traceback worth telling."""
    return Problem(
        {
            "state": state,
            "reason": shortened(reason, frames.MAX_REASON_CHARACTERS),
            "type": kind,
            "message": None if message is None else shortened(message, frames.MAX_MESSAGE_CHARACTERS),
            "traceback": None,
        }
    )


def raised(error: BaseException, reason: str, *, source: bytes, filename: str, exit_code: int = 1) -> Problem:
    """Return the problem that an error of the plan is; its text and traceback are kept apart from the reason.

    The text of an error may hold what is in the data; the reason has only its type and its line.
    """
    if isinstance(error, MemoryError | RecursionError):
        _forget_frames(error.__traceback__)
    line = _line(error.__traceback__, filename)
    kind = type_name(error)
    return Problem(
        {
            "state": frames.FAILED,
            "reason": shortened(reason.format(what=kind, where=f" (line {line})" if line else ""), 1024),
            "type": kind,
            "message": shortened(_message(error), frames.MAX_MESSAGE_CHARACTERS),
            "traceback": shortened(_traceback(error, source, filename), frames.MAX_TRACEBACK_CHARACTERS),
        },
        exit_code=exit_code,
    )


def type_name(error: BaseException) -> str:
    """Return the name of an error's class, with its module when it is neither Python's, the plan's nor ours.

    A class that is not in the module that it names is the plan's; one that is called as a built-in keeps its module.
    """
    kind = type(error)
    module = str(getattr(kind, "__module__", MODULE))
    found: object = sys.modules.get(module)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not kind:
        module = MODULE
    is_near = module == "builtins" or module.startswith("fedmon.")
    is_near = is_near or (module == MODULE and not hasattr(builtins, kind.__name__))
    name = kind.__qualname__ if is_near else f"{module}.{kind.__qualname__}"
    return shortened(ascii(name)[1:-1], frames.MAX_TYPE_CHARACTERS)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - the plan's own __str__ may raise anything
        return f"(its text cannot be had: {type(other).__name__})"


def _line(trace: TracebackType | None, filename: str) -> int | None:
    """Return the innermost line of the plan that an error passed."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _traceback(error: BaseException, source: bytes, filename: str) -> str:
    """Return the traceback from the plan's first line on, as Python prints it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    try:
        import linecache
        import traceback

        lines = source.decode("utf-8-sig", "replace").splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        return "".join(traceback.format_exception(type(error), error, trace, limit=-_MAX_ENTRIES))
    except Exception as other:  # noqa: BLE001 - a plan may leave Python without files, memory or a sound error
        return f"{type_name(error)} (no traceback: {type(other).__name__})"


def _forget_frames(trace: TracebackType | None) -> None:
    """Give back what the plan's functions hold, as it is just memory that is missing."""
    while trace is not None:
        try:  # noqa: SIM105 - contextlib would have to be imported, and there is no memory
            trace.tb_frame.clear()
        except RuntimeError:  # it still runs
            pass
        trace = trace.tb_next


def complain(text: str) -> None:
    """Write a text where Python would, for who reads the job's stderr, wherever the plan has its own go."""
    try:
        sys.__stderr__.write(f"{text.rstrip()}\n")  # type: ignore[union-attr]  # None fails as a closed one does
    except Exception:  # noqa: BLE001 - nobody can be told that nobody can be told
        return
