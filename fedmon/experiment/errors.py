"""What can be wrong with an experiment: the class says what kind, the attributes carry the facts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fedmon.common.errors import FedmonError, InvalidInputError


class ExperimentError(FedmonError):
    """The root of the errors of experiments."""

    exit_code = 2


class UnknownNameError(ExperimentError, KeyError):
    """There is nothing of this name; ``known`` is what there is."""

    exit_code = 3

    def __init__(self, what: str, name: object, known: Iterable[object], *, hint: str = "") -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"{what} {name!r}{_near(name, self.known)}{hint}")

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


class UnknownAttributeError(UnknownNameError):
    """A resource or type has no attribute of this name."""


class UnknownTraceError(UnknownNameError):
    """A resource or type has no trace of this name."""


class UnknownTypeError(UnknownNameError):
    """No resource type of this name was registered, and no plug-in folder holds one."""


class UnknownGuidError(ExperimentError, KeyError):
    """The experiment has no resource of this guid; says which there are."""

    exit_code = 3

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidExperimentError(ExperimentError, ValueError):
    """An experiment, a guid or a group cannot be named or set up like this."""


class DescriptionError(InvalidExperimentError, InvalidInputError):
    """A document does not describe an experiment; the message names the place, the fault and the remedy."""


class DuplicateGuidError(InvalidExperimentError):
    """A guid is taken."""

    exit_code = 4


class InvalidConditionError(ExperimentError, ValueError):
    """A condition asks for something that there is not, or that cannot come."""


class InvalidStateError(ExperimentError, ValueError):
    """There is no such state, or a verb does nothing in the state of its resource.

    ``is_over`` tells that the resource FAILED or was RELEASED: who called came too late, and did nothing wrong.
    """

    is_over = False


class InvalidTimeError(ExperimentError, ValueError):
    """A text is neither a duration nor a moment."""

    def __init__(self, text: object, reason: str = "") -> None:
        self.text = text
        super().__init__(
            f"{_short(text)} is no time{f' ({reason})' if reason else ''}: "
            'write "1.5h", "2m", "30s", "5ms", "7us" or together "2m30s", or a moment as 20 digits, '
            "YYYYMMDDhhmmssffffff"
        )


class InvalidAttributeError(ExperimentError, ValueError):
    """An attribute or a trace cannot be defined like this."""


class InvalidAttributeValueError(ExperimentError, ValueError):
    """A value is not one that an attribute can have; it keeps the one it had."""

    def __init__(self, attribute: str, value: Any, allowed: str, *, resource: str = "", reason: str = "") -> None:
        self.attribute, self.value, self.allowed, self.resource = attribute, value, allowed, resource
        where = f" of {resource}" if resource else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"{_short(value)} cannot be the attribute {attribute!r}{where}{why}; it takes {allowed}")


class AttributeAccessError(ExperimentError):
    """An attribute's flags forbid what was asked; ``flag`` is the one that does."""

    exit_code = 4

    def __init__(self, attribute: str, resource: str, flag: str, reason: str) -> None:
        self.attribute, self.resource, self.flag = attribute, resource, flag
        super().__init__(f"attribute {attribute!r} of {resource} {reason} (flag {flag})")


class InvalidConnectionError(ExperimentError):
    """Two resources cannot be connected: one of them said no, or failed to; neither lists the other."""

    exit_code = 4


class InvalidTypeError(ExperimentError, TypeError):
    """A class cannot be registered as a resource type."""


class PluginError(ExperimentError):
    """A plug-in folder or a file in it cannot be used; ``path`` says which."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"plug-in {path}: {reason}")


class ResourceNotCreatedError(ExperimentError):
    """The constructor of a resource type raised."""

    exit_code = 1


class ExperimentOverError(ExperimentError):
    """A resource outlived its experiment."""

    exit_code = 4


class ExperimentAbortedError(ExperimentError):
    """A failure ended the experiment: what there is can be released, and nothing more be deployed."""

    exit_code = 4


class UnwritableEventError(ExperimentError, ValueError):
    """Something cannot be written down in the journal of a run, and was not done."""


class FederationUnreachableError(ExperimentError):
    """The federation of an experiment cannot be connected to."""

    exit_code = 6


class DeadlockError(ExperimentError):
    """A hook would wait for its own resource."""

    exit_code = 4


class TraceNotReadableError(ExperimentError):
    """A trace is not there, or cannot be read like this."""

    exit_code = 3


class InvalidTaskError(ExperimentError, TypeError):
    """A task has no moment or nothing to call."""


class InvalidPolicyError(ExperimentError, ValueError):
    """A failure policy asks for something that cannot be."""


def told(error: BaseException) -> str:
    """Return an exception in one line, which can be written down."""
    text = _written(error)
    return text if isinstance(error, FedmonError) and text else f"{type(error).__name__}{text and f': {text}'}"


def as_reason(given: object) -> str:
    """Return why something failed as a text which can be written down, whatever a caller gave; "" for None."""
    if given is None:
        return ""
    return told(given) if isinstance(given, BaseException) else _written(given)


def _written(given: object) -> str:
    try:
        text = str(given)
    except Exception as error:  # noqa: BLE001 - the code of somebody else's class
        text = f"a {type(given).__name__} that cannot be shown: {type(error).__name__}"
    return text.encode(errors="backslashreplace").decode()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _near(name: object, known: tuple[object, ...]) -> str:
    if not known:
        return "; there is none at all"
    names = sorted(map(str, known))
    if len(names) <= 20:
        return f"; there is {', '.join(names)}"
    near = difflib.get_close_matches(str(name), names, n=5)
    return f"; there are {len(names)}" + (f", nearest {', '.join(near)}" if near else "")
