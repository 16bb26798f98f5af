"""Read JSON from somebody else: no constants beyond the standard, no key twice, nothing too deep or too large."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from fedmon.plan.values import LARGEST, MAX_CONTAINERS, MAX_DEPTH, MAX_DOCUMENT_BYTES, SMALLEST, InvalidValuesError

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def read_object(data: memoryview, *, depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Return the object that bytes hold. Raises InvalidValuesError saying what is wrong with them.

    Integers have at most 64 bits, other numbers are finite, texts are Unicode; ``depth`` counts containers.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidValuesError(f"{len(data)} bytes of JSON, more than {MAX_DOCUMENT_BYTES}")
    try:
        text = bytes(data).decode()
        _refuse_too_many(text)
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidValuesError(f"no JSON: it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise InvalidValuesError(f"JSON with more than {depth} containers around each other") from None
    except InvalidValuesError:
        raise
    except ValueError as error:
        raise InvalidValuesError(f"no JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise InvalidValuesError("JSON that is no object")
    _check(value, depth)
    return value


def _refuse_too_many(text: str) -> None:
    if text.count("[") + text.count("{") > MAX_CONTAINERS:
        bare = _STRING.sub("", text)
        if bare.count("[") + bare.count("{") > MAX_CONTAINERS:
            raise InvalidValuesError(f"JSON with more than {MAX_CONTAINERS} lists and objects")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidValuesError(f"JSON with the key {name[:80]!r} twice in one object")
            seen.add(name)
    return members


def _refuse_constant(constant: str) -> NoReturn:
    raise InvalidValuesError(f"no JSON: {constant} is no number")


def _check(value: dict[str, Any], depth: int) -> None:
    """Look at all values, without recursion."""
    layer: list[Any] = [value]
    for _ in range(depth):
        inner: list[Any] = []
        for container in layer:
            members = container
            if isinstance(container, dict):
                for name in container:
                    _check_leaf(name)
                members = container.values()
            for member in members:
                if isinstance(member, dict | list):
                    inner.append(member)
                else:
                    _check_leaf(member)
        layer = inner
        if not layer:
            return
    raise InvalidValuesError(f"JSON with more than {depth} containers around each other")


def _check_leaf(value: object) -> None:
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidValuesError("JSON with half a surrogate pair in a text") from None
    elif isinstance(value, float):
        if value - value != 0:
            raise InvalidValuesError("JSON with a number beyond every float")
    elif isinstance(value, int) and not SMALLEST <= value <= LARGEST:
        raise InvalidValuesError("JSON with an integer beyond 64 bits")
