"""Parcels: what goes in comes out, ordinary tools read them, and nothing else than a parcel is taken for one."""

from __future__ import annotations

import collections
import enum
import hashlib
import io
import json
import tracemalloc
import types
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.errors import InvalidInputError
from fedmon.plan.parcels import InvalidValuesError, TooLargeError, contents, pack, read_inputs, unpack
from tests.plan.trials import packed

ARRAYS: dict[str, Any] = {
    "plain": np.arange(6.0).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "strided": np.arange(10)[::3],
    "nothing": np.zeros((0, 4), dtype="f4"),
    "one": np.array(3.5),
    "truths": np.array([True, False]),
    "texts": np.array(["a", "\U0001f600b"]),
    "bytes": np.array([b"a", b"bc"]),
    "big_endian": np.arange(3, dtype=">i4"),
    "complex": np.array([1 + 2j], dtype="c8"),
    "half": np.array([np.nan, np.inf, 1], dtype="f2"),
    "no_text": np.array(["", ""]),
}


def packed_bytes(values: Any) -> bytes:
    kind, content = packed(values)
    assert len(content) == pack(values).size_bytes
    contents(kind, memoryview(content))
    return content


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_with_its_type_shape_and_values_aligned(name: str) -> None:
    array = ARRAYS[name]

    back = unpack("npz", packed_bytes({"model": [1, {"w": array}]}))["model"][1]["w"]

    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array, equal_nan=array.dtype.kind in "fc")
    assert back.flags.aligned


def test_empty_texts_of_a_structured_array_travel() -> None:
    texts = np.array([("", 1), ("", 2)], dtype="U,i4")["f0"]

    back = unpack("npz", packed_bytes({"w": texts}))["w"]

    assert (texts.itemsize, back.tolist()) == (0, ["", ""])


def test_equal_values_make_the_bytes_that_earlier_versions_made() -> None:
    texts = np.array(["ab"], dtype="<U2")
    values = {"w": np.arange(6, dtype="<f8").reshape(2, 3), "deep": [{"t": texts}], "n": 1}

    digest = hashlib.sha256(packed_bytes(values)).hexdigest()

    assert digest == "eac3e99e86269b6e43d9fb5cf57605b527a21c02adfdfaff8fcf50b622cf0106"


def test_ordinary_tools_read_a_parcel_of_arrays() -> None:
    content = packed_bytes({"w": ARRAYS["plain"], "f": ARRAYS["fortran"], "n": 1})

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert json.loads(archive.read("document.json")) == {
            "values": {"w": None, "f": None, "n": 1},
            "arrays": [["w"], ["f"]],
        }
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        assert arrays["0"].tolist() == ARRAYS["plain"].tolist()
        assert arrays["1"].tolist() == ARRAYS["fortran"].tolist()


class Pair(NamedTuple):
    first: int
    second: int


class Colour(enum.IntEnum):
    RED = 2


def test_scalars_of_numpy_and_relatives_of_plain_types_become_plain() -> None:
    values = {
        "f4": np.float32(0.5), "f8": np.float64(1.5), "i": np.int8(-3), "u": np.uint64(2**64 - 1), "b": np.bool_(1),
        "s": np.str_("x"), "g": np.longdouble(2), "e": Colour.RED,
        "d": collections.OrderedDict(a=1), "p": types.MappingProxyType({"a": 1}), "n": Pair(4, 5),
        "t": (True, None),
    }  # fmt: skip

    assert json.loads(packed_bytes(values)) == {
        "f4": 0.5, "f8": 1.5, "i": -3, "u": 2**64 - 1, "b": True, "s": "x", "g": 2.0, "e": 2,
        "d": {"a": 1}, "p": {"a": 1}, "n": [4, 5], "t": [True, None],
    }  # fmt: skip


def _cycle() -> dict[str, Any]:
    cycle: dict[str, Any] = {"list": []}
    cycle["list"].append(cycle)
    return cycle


def _deep(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"d": value}
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "none": (None, "None instead of a mapping"),
    "a list": ([1], "a value of type list instead of a mapping"),
    "nan": ({"m": {"loss": float("nan")}}, "m.loss: nan, which JSON has not"),
    "nan in a long list": ({"m": [1.0, 2.0, float("nan")]}, "m[2]: nan"),
    "inf of numpy": ({"m": np.float32("inf")}, "m: inf"),
    "an instance": ({"m": [object()]}, "m[0]: a value of type object"),
    "a class": ({"m": dict}, "m: the class dict"),
    "a function": ({"m": len}, "m: a value of type builtin_function_or_method"),
    "objects": ({"model": {"w": np.array([None])}}, "model.w: an array of objects (give it a type,"),
    "records": ({"w": np.zeros(2, dtype="i4,f8")}, "w: an array of type"),
    "times": ({"w": np.array(["2026-01-01"], dtype="M8[D]")}, "w: an array of type datetime64"),
    "long doubles": ({"w": np.zeros(2, dtype=np.longdouble)}, "w: an array of type"),
    "masked": ({"w": np.ma.masked_array([1, 2], mask=[False, True])}, "w: a masked array"),
    "a time": ({"w": np.datetime64("2026-01-01")}, "w: a numpy scalar of type datetime64"),
    "a set": ({"s": {1}}, "s: a value of type set (JSON values"),
    "bytes": ({"s": b"x"}, "s: a value of type bytes (JSON values"),
    "complex": ({"s": 1j}, "s: a value of type complex (JSON values"),
    "a number as key": ({"m": {1: 2}}, "m: the key 1, which is no text"),
    "a cycle": (_cycle(), "more than 32 containers"),
    "too deep": (_deep(33), "more than 32 containers"),
    "a large integer": ({"n": 2**64}, "n: an integer beyond 64 bits"),
    "large integers": ({"n": [1, -(2**63) - 1]}, "n[1]: an integer beyond 64 bits"),
    "half a pair": ({"t": ["\ud800"]}, "t[0]: a text with half a surrogate pair"),
    "half a pair as key": ({"\udfff": 1}, "half a surrogate pair"),
    "many containers": ({"m": [[]] * 500_001}, "more than 500000"),
    "many dimensions": ({"w": np.zeros((1,) * 33)}, "w: an array of 33 dimensions, more than 32"),
    "many arrays": ({"w": [np.zeros(0)] * 100_000}, "w[99999]: more than 99999 arrays"),
    "much JSON": ({"m": "x" * (2**24 + 1)}, "bytes of JSON, more than 16777216: send arrays"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_travel_is_refused_by_its_place(what: str) -> None:
    values, message = REFUSED[what]

    with pytest.raises(InvalidValuesError) as refused:
        pack(values)

    assert message in str(refused.value)


def test_inputs_in_the_home_of_an_unknown_user_are_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="nobody-here"):
        read_inputs(Path("~nobody-here/w.npz"))


def test_the_deepest_values_that_are_packed_are_read() -> None:
    assert unpack("json", packed_bytes(_deep(32))) == _deep(32)
    deepest: dict[str, Any] = {"w": np.arange(2)}
    for _ in range(31):
        deepest = {"d": deepest}
    unpack("npz", packed_bytes(deepest))


@pytest.mark.parametrize(
    "values", [{"x": "a" * 2000}, {"x": np.zeros(500)}, {"x": [1.5] * 500}, {"x": ["a"] * 500}], ids=str
)
def test_what_is_larger_than_allowed_is_known_before_a_byte_is_written(values: dict[str, Any]) -> None:
    with pytest.raises(TooLargeError, match="more than 1000 bytes"):
        pack(values, max_bytes=1000)


def test_values_that_repeat_one_another_without_end_are_bounded() -> None:
    value: Any = [0.5, "x"]
    for _ in range(30):
        value = [value, value]

    with pytest.raises(TooLargeError):
        pack({"v": value}, max_bytes=100_000)


def test_large_arrays_are_packed_and_unpacked_without_copies() -> None:
    values = {"w": np.ones(4_000_000)}
    tracemalloc.start()
    large = pack(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    content = bytearray(b"".join(large.pieces))

    back = unpack("npz", content)["w"]
    back[0] = 7

    assert peak < 1_000_000
    assert unpack("npz", content)["w"][0] == 7


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60)
@given(st.dictionaries(st.text(), _values, max_size=4))
def test_all_json_values_come_back_as_they_were(values: dict[str, Any]) -> None:
    content = packed_bytes(values)

    assert unpack("json", content) == values
    assert content == json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
