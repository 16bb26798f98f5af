"""One question to one device, and the values that its answer gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fedmon.node.collectors.nvml.library import Meaning, Nvml, RefusedError, number

Labels = tuple[tuple[str, str], ...]
UINT_MOST = 2**32 - 2
"""Above it a 32-bit answer is NVML_VALUE_NOT_AVAILABLE_uint."""


class Gpu(NamedTuple):
    """A device, or a MIG instance of one, with the handle by which NVML knows it."""

    nvml: Nvml
    handle: object
    labels: Labels


class Value(NamedTuple):
    """One value of a metric of one device; None where the driver says that it has no value."""

    metric: str
    labels: Labels
    number: float | None


class Query(NamedTuple):
    """A question that a device may refuse for good; then ``otherwise`` is asked in its place.

    ``name`` is unique within a device. ``gives`` names the metrics with their own labels, which are None where only
    an answer tells them.
    """

    name: str
    gives: tuple[tuple[str, Labels | None], ...]
    read: Callable[[Gpu], Iterator[Value]]
    otherwise: Query | None = None


class Part(NamedTuple):
    """A number in an answer: where it is, and how it becomes base units: ``* times / per``.

    ``pick`` is an attribute or an index, None for the answer itself. A number above ``most`` is none.
    """

    metric: str
    pick: str | int | None = None
    times: int = 1
    per: int = 1
    most: int = UINT_MOST
    labels: Labels = ()


def ask(call: str, *arguments: str | int, parts: tuple[Part, ...], otherwise: Query | None = None) -> Query:
    """Make the query that calls one function with the device's handle and ``arguments``."""
    shown = f"{call}({', '.join(map(str, arguments))})" if arguments else call

    def read(gpu: Gpu) -> Iterator[Value]:
        answer = gpu.nvml.call(call, gpu.handle, *arguments)
        for part in parts:
            yield Value(part.metric, part.labels, scaled(part, answer, call=shown))

    return Query(shown, tuple((part.metric, part.labels) for part in parts), read, otherwise)


def field(constant: str, part: Part, *, scope: int = 0, otherwise: Query | None = None) -> Query:
    """Make the query for one field value; ``scope`` is the link, for fields that each link has.

    A field has a return code of its own beside that of the call, and one number in the union that its type names.
    """
    shown = f"{constant}[{scope}]"

    def read(gpu: Gpu) -> Iterator[Value]:
        identity = gpu.nvml.constant(constant)
        if identity is None:
            raise RefusedError(shown, "FUNCTION_NOT_FOUND", Meaning.NEVER)
        answers = gpu.nvml.call("nvmlDeviceGetFieldValues", gpu.handle, [(identity, scope)])
        answer = answers[0]  # type: ignore[index]  # an array of structures of ctypes
        if answer.nvmlReturn != 0:
            raise gpu.nvml.refusal(int(answer.nvmlReturn), shown)
        kind = _UNION[answer.valueType] if 0 <= answer.valueType < len(_UNION) else "ullVal"
        yield Value(part.metric, part.labels, scaled(part, getattr(answer.value, kind), call=shown))

    return Query(shown, ((part.metric, part.labels),), read, otherwise)


_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of NVML_VALUE_TYPE_*."""


def scaled(part: Part, answer: object, *, call: str) -> float | None:
    """Return one part of an answer in base units. Raises RefusedError when it is no number."""
    found = number(_picked(part.pick, answer), call=call)
    if found is None or found < 0 or found > part.most:
        return None
    return found * part.times if part.per == 1 else found * part.times / part.per


def _picked(pick: str | int | None, answer: object) -> object:
    if pick is None:
        return answer
    if isinstance(pick, str):
        return getattr(answer, pick, None)
    return answer[pick] if isinstance(answer, list | tuple) and pick < len(answer) else None
