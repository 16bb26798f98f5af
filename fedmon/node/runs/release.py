"""The release gate: rules for data that leaves of a job, and their check, without the plan and without its owner."""

from __future__ import annotations

import math
import re
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.plan.parcels import archive, array_header, contents
from fedmon.plan.values import json_text, spelled

if TYPE_CHECKING:
    from fedmon.common.settings.values import ReleaseSettings
    from fedmon.common.wire.grants import Grant
    from fedmon.plan.parcels import PlacedArray

OWNER_DECIDES = "the owner decides about each result"
HELD = "the result waits for the owner of the node, who releases or withholds it"
"""It follows the rules that a held result breaks."""
SCALAR_EVERY_S = 1.0
"""The pace of the values of one name."""
SMALL_COUNT = 10
"""Counts below it are marked for the owner: they may be about single persons."""
_FIRST, _NUMBER_BYTES = 5, 8
_LETTERS = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
            "f2": "e", "f4": "f", "f8": "d", "c8": "ff", "c16": "dd"}  # fmt: skip


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The most that may leave of one job by itself: bytes and numbers of its result, and names of its scalars.

    ``numbers`` None is no limit. ``names`` were known before the run: they count for nothing at the top level, and as
    one number below it. ``texts`` names entries of the result whose texts may be longer than ``text`` characters.
    ``dataset`` is the rule that the dataset breaks; ``asks`` holds every result.
    """

    max_bytes: int
    numbers: int | None
    text: int
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    dataset: str = ""
    asks: bool = False


def rules_for(
    settings: ReleaseSettings, grant: Grant | None, *, has_dataset: bool, rows: int | None, known: bytes
) -> Rules | None:
    """Return the rules for a job; None if everything leaves. Without a dataset the rules about rows do not apply.

    ``known`` is the text known before the run: the plan, its arguments and the columns of its dataset.
    """
    mode = settings.mode if grant is None or grant.release is None else grant.release.value
    if mode == "auto":
        return None
    numbers, dataset = None if grant is None else grant.values, ""
    if has_dataset and rows is None:
        dataset = "the number of rows of the dataset is not known"
    elif has_dataset and rows is not None:
        if numbers is None and settings.max_numbers_per_row != math.inf:
            numbers = int(min(rows * settings.max_numbers_per_row, sys.maxsize))
        dataset = f"the dataset has fewer than {settings.min_rows} rows" if rows < settings.min_rows else ""
    return Rules(
        max_bytes=settings.max_bytes,
        numbers=numbers,
        text=settings.max_text,
        names=tuple(sorted(set(re.findall(r"\w+", known.decode(errors="replace"))))),
        texts=() if grant is None else grant.texts,
        scalars=() if grant is None or dataset else grant.scalars or (),
        dataset=dataset,
        asks=mode == "ask",
    )


def check(
    view: memoryview, values: dict[str, Any], arrays: list[PlacedArray], rules: Rules
) -> tuple[bytes | None, str]:
    """Check a result, given with its `contents`; return it rounded, None if it is too large, and the broken rules."""
    broken = [rule for rule in (OWNER_DECIDES if rules.asks else "", rules.dataset) if rule]
    if len(view) > rules.max_bytes:
        return None, "; ".join([*broken, f"more than {rules.max_bytes} bytes"])
    if rules.numbers is not None and numbers_in(values, arrays, rules) > rules.numbers:
        broken.append(f"more than {rules.numbers} numbers, names and texts included")
    if _has_long_text(values, arrays, rules):
        broken.append(f"a text of more than {rules.text} characters")
    content = _rewritten(view, values, arrays)
    if len(content) > rules.max_bytes:  # a plan may spell numbers in fewer letters
        broken.append(f"more than {rules.max_bytes} bytes")
    return content, "; ".join(broken)


def numbers_in(values: dict[str, Any], arrays: list[PlacedArray], rules: Rules | None = None) -> int:
    """Count the content of a result, in numbers of 8 bytes.

    A truth, a null and an empty container are one number, a complex number is two, a text and an unknown name one for
    each 8 bytes, an empty array one for each dimension. Under rules, a known name below the top level is one, and so
    is a text of an entry that may hold long ones; without, no name counts.
    """
    texts, names = ((), None) if rules is None else (rules.texts, frozenset(rules.names))
    count = 0 if names is None else sum(_numbers(len(name.encode())) for name in values if name not in names)
    count += sum(_count(value, names, is_named=name in texts) for name, value in values.items())
    for place, descr, shape, _, _ in arrays:
        size = 1 if place[0] in texts else _item_bytes(descr) if descr[1] in "cSU" else 1
        count += (math.prod(shape) * _numbers(size) or len(shape)) - 1  # it is counted as a null already
    return count


def rounded(value: float) -> float:
    """Return a float with 6 significant digits."""
    return float(f"{value:.5e}")


def described(parcel_format: str, view: memoryview) -> list[dict[str, Any]]:
    """Describe each entry and array of a result for its owner: its kind, range, first values, and small counts."""
    values, arrays = contents(parcel_format, view)
    entries = []
    for place, value in _entries(values):
        if value is not None or all(place != where for where, *_ in arrays):
            leaves = list(_flat(value))
            kinds = " and ".join(dict.fromkeys(_kind(each) for each in leaves))
            entries.append(_entry(spelled(place), kinds or "empty", leaves))
    for place, descr, shape, _, offset in arrays:
        size = _item_bytes(descr) * math.prod(shape)
        kind = f"array {' x '.join(map(str, shape)) or 'of one'} of {descr.lstrip('<>|')}"
        entries.append(_entry(spelled(place), kind, _items(descr, view[offset : offset + size])))
    return entries


def _entry(place: str, kind: str, items: Iterable[Any]) -> dict[str, Any]:
    count = small = 0
    least = most = None
    first: list[Any] = []
    for item in items:
        count += 1
        if len(first) < _FIRST:
            first.append(item)
        if isinstance(item, int | float) and not math.isnan(item):
            least, most = item if least is None else min(least, item), item if most is None else max(most, item)
            small += not isinstance(item, bool) and 0 < item < SMALL_COUNT and item == int(item)
    return {"place": place, "kind": kind, "count": count, "least": least, "most": most, "first": first, "small": small}


def _kind(value: object) -> str:
    return {bool: "truths", int: "integers", float: "floats", str: "texts"}.get(type(value), "nulls")


def _count(value: Any, names: frozenset[str] | None, *, is_named: bool) -> int:
    if isinstance(value, str):
        return 1 if is_named else _numbers(len(value.encode()))
    if isinstance(value, dict):
        below = () if names is None else value
        told = sum(1 if name in (names or ()) else _numbers(len(name.encode())) for name in below)
        return told + sum(_count(each, names, is_named=is_named) for each in value.values()) or 1
    if isinstance(value, list):
        return sum(_count(each, names, is_named=is_named) for each in value) or 1
    return 1


def _numbers(size_bytes: int) -> int:
    """Return how many numbers hold this many bytes."""
    return max(1, -(-size_bytes // _NUMBER_BYTES))


def _entries(values: dict[str, Any]) -> Iterator[tuple[list[str | int], Any]]:
    """Yield the values of mappings, each with its place, and an empty mapping as it is."""
    for name, value in values.items():
        inner = _entries(value) if isinstance(value, dict) and value else [([], value)]
        yield from (([name, *place], each) for place, each in inner)


def _flat(value: Any) -> Iterator[Any]:
    """Yield the values inside a value, also the names of a mapping."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _flat(each)
    elif isinstance(value, list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _has_long_text(values: dict[str, Any], arrays: list[PlacedArray], rules: Rules) -> bool:
    checked = {name: value for name, value in values.items() if name not in rules.texts}
    return any(isinstance(each, str) and len(each) > rules.text for each in _flat(checked)) or any(
        descr[1] in "SU" and int(descr[2:]) > rules.text and place[0] in checked for place, descr, *_ in arrays
    )


def _rewritten(view: memoryview, values: dict[str, Any], arrays: list[PlacedArray]) -> bytes:
    """Return a result with its floats rounded, and its JSON as fedmon spells it: blanks could say something."""
    plain = _rounded(values)
    if not arrays:
        return json_text(plain).encode()
    document = {"values": plain, "arrays": [place for place, *_ in arrays]}
    files: list[list[bytes | memoryview]] = [[json_text(document).encode()]]
    for _, descr, shape, is_fortran, offset in arrays:
        data = view[offset : offset + _item_bytes(descr) * math.prod(shape)]
        head = array_header(descr, shape, is_fortran=is_fortran)
        files.append([head, _rounded_data(descr, data) if descr[1:] in ("f8", "c16") else data])
    return b"".join(archive(files))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return rounded(value) if isinstance(value, float) else value


def _rounded_data(descr: str, data: memoryview) -> bytes:
    numbers = array("d", (rounded(each) for (each,) in struct.iter_unpack(f"{descr[0]}d", data)))
    if (descr[0] == "<") != (sys.byteorder == "little"):
        numbers.byteswap()
    return numbers.tobytes()


def _item_bytes(descr: str) -> int:
    return int(descr[2:]) * (4 if descr[1] == "U" else 1)


def _items(descr: str, data: memoryview) -> Iterator[Any]:
    """Yield the items of an array; of a complex number both parts."""
    if descr[1] in "SU":
        size, code = _item_bytes(descr), "ascii" if descr[1] == "S" else f"utf-32-{'be' if descr[0] == '>' else 'le'}"
        for start in range(0, len(data), size):
            yield bytes(data[start : start + size]).decode(code, "backslashreplace").rstrip("\0")
        return
    order = descr[0] if descr[0] in "<>" else "="
    for each in struct.iter_unpack(order + _LETTERS[descr[1:]], data):
        yield from each
