"""Make the source of a plan into the one plan object that is in it."""

from __future__ import annotations

import sys

from fedmon.common.errors import InvalidInputError
from fedmon.common.training_plan import TrainingPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

MODULE = "fedmon_plan"
"""What the module of a plan is called while it runs."""
_MAX_NAMED = 10


class NoPlanError(InvalidInputError):
    """The source has not exactly one class that can be run; says which classes there are."""


class _Source:
    """What Python asks for the lines of the plan, which lies in no file: for tracebacks and for inspect."""

    def __init__(self, source: bytes) -> None:
        self._source = source

    def get_source(self, _name: str) -> str:
        """Return the text of the module."""
        return self._source.decode("utf-8-sig", "replace")


def compiled(source: bytes, filename: str) -> CodeType:
    """Return the code of a source. Raises SyntaxError, ValueError, MemoryError or RecursionError for what is none.

    It is UTF-8, whatever encoding a comment in it declares: in another one, what the owner read as a comment could run.
    """
    return compile(source.decode("utf-8-sig"), filename, "exec", dont_inherit=True)


def execute(code: CodeType, source: bytes, filename: str) -> dict[str, Any]:
    """Run the source as a module of its own, and return what it defines; whatever it raises comes through."""
    module = type(sys)(MODULE)
    module.__file__ = filename
    module.__loader__ = _Source(source)  # type: ignore[assignment]  # it only has what linecache asks for
    # What a plan hands to processes that it forks, and its data classes, are looked up here.
    sys.modules[MODULE] = module
    exec(code, module.__dict__)  # noqa: S102 - the owner of this machine approved these very bytes
    return module.__dict__


def find(defined: dict[str, Any]) -> type[TrainingPlan]:
    """Return the one class of the module that derives from TrainingPlan and that no other of these derives from.

    A class that was imported does not count. Raises NoPlanError.
    """
    classes = {id(value): value for value in defined.values() if isinstance(value, type)}.values()
    own = [kind for kind in classes if getattr(kind, "__module__", None) == MODULE]
    plans = [kind for kind in own if issubclass(kind, TrainingPlan)]
    last = [kind for kind in plans if not any(kind in other.__mro__[1:] for other in plans)]
    if len(last) > 1:
        raise NoPlanError(
            f"the plan has {len(last)} classes that derive from TrainingPlan, and one is needed: {_names(last)}"
        )
    if not last:
        others = f"; it has {_names(own)}" if own else "; it has no class of its own"
        raise NoPlanError(f"the plan has no class that derives from fedmon.TrainingPlan{others}")
    if last[0].run is TrainingPlan.run:
        raise NoPlanError(f"the plan's class {_name(last[0])} has no method run(self, context)")
    return last[0]


def _names(kinds: list[type]) -> str:
    more = f" and {len(kinds) - _MAX_NAMED} more" if len(kinds) > _MAX_NAMED else ""
    return ", ".join(map(_name, kinds[:_MAX_NAMED])) + more


def _name(kind: type) -> str:
    return ascii(kind.__name__)[1:-1][:64]
