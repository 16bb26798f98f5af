"""What Python code holds of a class, function or object: public names, and how each is called."""

from __future__ import annotations

import ast
import enum
import inspect
from typing import Any

INTERNAL = {
    "accepted", "annotations", "answered", "as_noted", "as_plain", "asked", "asks_federation", "at_start",
    "changed_attributes", "check_value", "checked", "circumstances", "content", "csv", "default_send_topic",
    "delay_before_s", "describe", "due_at", "enabled_traces", "end_at_once", "end_waits", "expect", "failure_level",
    "federation", "follower", "from_description", "from_note", "give", "handler", "has_room", "has_turn", "heard",
    "is_lack", "is_masked", "is_of", "is_on", "is_online", "is_secret", "is_tidy", "listed", "lost_for_good",
    "masked_values", "may_have_missed", "not_at_start", "not_over", "note_failure", "notes", "on_over", "outcome",
    "overrides", "parts", "plain_verbs", "plugin_errors", "populate", "posts", "prev_bytes_recv", "prev_bytes_sent",
    "prev_packets_recv", "prev_packets_sent", "put", "questions", "register_own", "repeats", "restore", "rows",
    "set_data", "shown", "snapshot", "stored", "take_stored", "take_up", "takes", "turn", "type_retry",
    "type_timeouts", "wish", "with_value",
}  # fmt: skip
"""Names without an underscore that no page tells of, and that the package has for itself."""


def described(value: Any) -> list[str]:
    """Return each name that users hold of a value: ``(...)`` how it is called itself, ``name(...)``, or ``name``."""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return list(value.__members__)
    if inspect.isroutine(value):
        return [signature(value)]
    own = [signature(value)] if isinstance(value, type) and not issubclass(value, BaseException) else []
    return own + [_member(value, name) for name in sorted(dir(value)) if _is_held(value, name)]


def _is_held(value: Any, name: str) -> bool:
    """Tell whether a name is public and ours; `__enter__`, `__iter__`, `__len__` and the like are held, too."""
    if name in INTERNAL or (
        name.startswith("_") and name not in ("__enter__", "__iter__", "__len__", "__getitem__", "__bool__")
    ):
        return False
    owners = [each for each in inspect.getmro(value if isinstance(value, type) else type(value)) if name in vars(each)]
    return not owners or owners[-1].__module__.startswith(("fedmon", "tests"))


def _member(value: Any, name: str) -> str:
    static = inspect.getattr_static(value, name)
    if isinstance(static, staticmethod | classmethod) or inspect.isfunction(static):
        return f"{name}{signature(getattr(value, name))}"
    return name


def signature(function: Any) -> str:
    """Return the arguments without their types; a default that is no literal is ``...``."""
    try:
        found = inspect.signature(function)
    except ValueError:
        return "(...)"
    kept = [
        one.replace(annotation=one.empty, default=_default(one.default))
        for one in found.parameters.values()
        if one.name != "self"
    ]
    return str(found.replace(parameters=kept, return_annotation=found.empty))


class _Shown(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return value
    text = str(value) if isinstance(value, enum.Enum) else repr(value)
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        text = "..."
    return _Shown(text)


def broken(frozen: list[str], now: list[str]) -> list[str]:
    """Return the names that are gone, and those that can no longer be called as they could."""
    names = {text.partition("(")[0]: text for text in now}
    lacking = []
    for text in frozen:
        name = text.partition("(")[0]
        if name not in names:
            lacking.append(f"{text} is gone")
        elif "(" in text and "(" in names[name] and not _takes(text[len(name) :], names[name][len(name) :]):
            lacking.append(f"{text} is now {names[name]}")
    return lacking


def _takes(old: str, new: str) -> bool:
    """Tell whether every call that fitted one list of arguments fits the other, and means the same."""
    if "(...)" in (old, new):
        return old == "(...)"
    before, after = _arguments(old), _arguments(new)
    if (before.vararg and not after.vararg) or (before.kwarg and not after.kwarg):
        return False
    places, places_now = ([(one.arg, _text(default)) for one, default in _placed(each)] for each in (before, after))
    more = [default for _, default in places_now[len(places) :]]
    words, words_now = (_worded(each) for each in (before, after))
    added = [words_now[name] for name in words_now if name not in words and name not in dict(places)]
    known = dict(places_now) | words_now
    return (
        places_now[: len(places)] == places
        and None not in more
        and None not in added
        and all(name in known and known[name] == default for name, default in words.items())
    )


def _arguments(text: str) -> ast.arguments:
    (function,) = ast.parse(f"def f{text}: pass").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


def _placed(of: ast.arguments) -> list[tuple[ast.arg, ast.expr | None]]:
    every = [*of.posonlyargs, *of.args]
    return list(zip(every, [*[None] * (len(every) - len(of.defaults)), *of.defaults], strict=True))


def _worded(of: ast.arguments) -> dict[str, str | None]:
    return {one.arg: _text(default) for one, default in zip(of.kwonlyargs, of.kw_defaults, strict=True)}


def _text(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)
