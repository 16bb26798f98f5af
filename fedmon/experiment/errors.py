"""The errors of experiments: the class says the kind, the attributes carry the facts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fedmon.common.errors import FedmonError, InvalidInputError


class ExperimentError(FedmonError):
    """The root of the errors of experiments."""

    exit_code = 2
    __str__ = Exception.__str__  # KeyError would show the message in quotes


class UnknownGuidError(ExperimentError, KeyError):
    """The experiment has no resource of this guid or name; the message lists the known ones."""

    exit_code = 3


class UnknownNameError(ExperimentError, KeyError):
    """A name is unknown; ``known`` are the known names."""

    exit_code = 3

    def __init__(self, what: str, name: object, known: Iterable[object]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"{what} {name!r}{_near(name, self.known)}")


class UnknownAttributeError(UnknownNameError):
    """A resource or type has no attribute of this name."""


class UnknownTraceError(UnknownNameError):
    """A resource or type has no trace of this name."""


class UnknownTypeError(UnknownNameError):
    """No resource type of this name is registered or found in a plug-in folder."""


class InvalidExperimentError(ExperimentError, ValueError):
    """An id, guid or option of an experiment is invalid."""


class DescriptionError(InvalidExperimentError, InvalidInputError):
    """A document does not describe an experiment; the message names place, fault and remedy."""


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Name the place in a document that has a wrong value. Raises DescriptionError."""
    try:
        yield
    except ValueError as error:
        raise DescriptionError(f"{where}: {error}") from error


class DuplicateGuidError(InvalidExperimentError):
    """A guid or name is taken."""

    exit_code = 4


class InvalidConditionError(ExperimentError, ValueError):
    """A condition can never hold, or asks for something unknown."""


class InvalidStateError(ExperimentError, ValueError):
    """A state is unknown, or a verb cannot run in the state of its resource.

    ``is_over`` tells that the resource is FAILED or RELEASED: the call came too late.
    """

    is_over = False


class InvalidTimeError(ExperimentError, ValueError):
    """A text is neither a duration nor a moment."""

    def __init__(self, text: object, remedy: str, reason: str = "") -> None:
        self.text = text
        super().__init__(f"{_short(text)} is not a time{f' ({reason})' if reason else ''}: write {remedy}")


class InvalidAttributeError(ExperimentError, ValueError):
    """The definition of an attribute or trace is invalid."""


class InvalidAttributeValueError(ExperimentError, ValueError):
    """An attribute does not take a value; it keeps its old one."""

    def __init__(self, attribute: str, value: Any, allowed: str, *, resource: str = "", reason: str = "") -> None:
        self.attribute, self.value, self.allowed, self.resource = attribute, value, allowed, resource
        where = f" of {resource}" if resource else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"{_short(value)} cannot be the attribute {attribute!r}{where}{why}; it takes {allowed}")


class AttributeAccessError(ExperimentError):
    """The flag ``flag`` of an attribute forbids reading or setting it."""

    exit_code = 4

    def __init__(self, attribute: str, resource: str, flag: str, reason: str) -> None:
        self.attribute, self.resource, self.flag = attribute, resource, flag
        super().__init__(f"attribute {attribute!r} of {resource} {reason} (flag {flag})")


class InvalidConnectionError(ExperimentError):
    """One of two resources refused their connection, or its hook failed; they are not connected."""

    exit_code = 4


class InvalidTypeError(ExperimentError, TypeError):
    """A class cannot be registered as a resource type."""


class ResourceNotCreatedError(ExperimentError):
    """The constructor of a resource type raised."""

    exit_code = 1


class ExperimentOverError(ExperimentError):
    """The experiment was shut down or deleted."""

    exit_code = 4


class ExperimentAbortedError(ExperimentError):
    """A failure ended the experiment: it can be released, and deploys nothing more."""

    exit_code = 4


class UnwritableEventError(ExperimentError, ValueError):
    """The journal cannot hold a value; nothing was changed."""


class DeadlockError(ExperimentError):
    """A hook would wait for its own resource."""

    exit_code = 4


class TraceNotReadableError(ExperimentError):
    """A trace does not exist, or cannot be read like this."""

    exit_code = 3


class InvalidTaskError(ExperimentError, TypeError):
    """A task has no valid time, or nothing to call."""


class InvalidPolicyError(ExperimentError, ValueError):
    """A timeout, a retry or a failure policy is invalid."""


def told(error: BaseException) -> str:
    """Return an exception as one line that files can hold."""
    text = _text_of(error)
    return text if isinstance(error, FedmonError) and text else f"{type(error).__name__}{text and f': {text}'}"


def as_reason(given: object) -> str:
    """Return the reason of a failure as text, from any value; "" for None."""
    if given is None:
        return ""
    return told(given) if isinstance(given, BaseException) else _text_of(given)


def _text_of(given: object) -> str:
    try:
        text = str(given)
    except Exception as error:  # noqa: BLE001 - a user's class
        text = f"a {type(given).__name__} that cannot be shown: {type(error).__name__}"
    return text.encode(errors="backslashreplace").decode()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _near(name: object, known: tuple[object, ...]) -> str:
    names = sorted(map(str, known))
    if len(names) <= 20:
        return f"; known: {', '.join(names) or 'none'}"
    near = difflib.get_close_matches(str(name), names, n=5)
    return f"; {len(names)} are known" + (f", nearest: {', '.join(near)}" if near else "")
