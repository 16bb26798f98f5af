"""What is taken for a parcel: what `pack` makes, and nothing else, whatever bytes somebody sends."""

from __future__ import annotations

import io
import json
import random
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.plan import parcels
from fedmon.plan.parcels import InvalidValuesError, contents, unpack
from tests.plan.trials import packed

JSON_BOMBS = {
    "nothing": b"",
    "no object": b"[]",
    "a number": b"1",
    "half": b'{"a":',
    "nan": b'{"a":NaN}',
    "infinity": b'{"a":-Infinity}',
    "over": b'{"a":1e999}',
    "twice": b'{"a":1,"a":1}',
    "twice inside": b'{"b":[{"a":1,"a":1}]}',
    "deep": b'{"a":' * 33 + b"1" + b"}" * 33,
    "very deep": b'{"a":' + b"[" * 400_000,
    "big": b'{"a":18446744073709551616}',
    "digits": b'{"a":' + b"9" * 10_000 + b"}",
    "latin": b'{"a":"\xe4"}',
    "half a pair": b'{"a":"\\ud800"}',
    "mark": b"\xef\xbb\xbf{}",
    "wide": '{"a":1}'.encode("utf-16"),
    "after": b"{} {}",
    "comment": b"{}//",
    "lists": b'{"a":[' + b"[]," * 500_001 + b"[]]}",
    "control": b'{"a":"\n"}',
    "long": b'{"a":"' + b"x" * 2**24 + b'"}',
    "a text without an end": b'{"a":[' + b"[]," * 40 + b'"' + b'\\"' * 300_000,
}


@pytest.mark.parametrize("what", JSON_BOMBS)
def test_what_is_no_strict_json_is_refused(what: str) -> None:
    with pytest.raises(InvalidValuesError):
        contents("json", memoryview(JSON_BOMBS[what]))


def test_one_name_twice_among_very_many_is_found_at_once() -> None:
    names = [f'"{number:x}":0' for number in range(300_000)]
    text = "{" + ",".join([*names, names[-1]]) + "}"

    with pytest.raises(InvalidValuesError, match="twice"):
        contents("json", memoryview(text.encode()))


def test_brackets_in_texts_are_no_containers() -> None:
    contents("json", memoryview(json.dumps({"a": "[" * 600_000 + '\\"{'}).encode()))


def test_other_formats_are_refused() -> None:
    with pytest.raises(InvalidValuesError, match="neither json nor npz"):
        contents("pickle", memoryview(b"{}"))


def _zip(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_archives_that_others_made_are_refused_without_being_unpacked() -> None:
    ours = {"document.json": b'{"values":{"w":null},"arrays":[["w"]]}'}
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    for foreign in (
        _zip(ours), _zip({**ours, "0.npy": pickled.getvalue()}), _zip({"../x": b""}), _zip({}),
        _zip({"0.npy": bytes(10**7)}, zipfile.ZIP_DEFLATED), b"PK\5\6" + bytes(18), b"", b"\x80\x04.",
    ):  # fmt: skip
        with pytest.raises(InvalidValuesError):
            contents("npz", memoryview(foreign))


DOCUMENTS = [
    {"values": {"w": 1}, "arrays": [["w"]]},
    {"values": {"w": None}, "arrays": [["v"]]},
    {"values": {"w": None}, "arrays": [[]]},
    {"values": {"w": None}, "arrays": []},
    {"values": {"w": None}, "arrays": [["w"], ["w"]]},
    {"values": {"w": "x"}, "arrays": [["w", 0]]},
    {"values": [None], "arrays": [[0]]},
    {"values": {"w": None}, "arrays": [["w"]], "more": 1},
    {"values": {"w": None}},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_documents_that_do_not_fit_their_arrays_are_refused(document: Any) -> None:
    with pytest.raises(InvalidValuesError):
        contents("npz", memoryview(_archive_of(json.dumps(document).encode(), np.arange(3))))


def _archive_of(document: bytes, array: Any, header: bytes | None = None) -> bytes:
    """Lay out an archive as ours are, whatever it holds."""
    head = header or parcels.array_header(array.dtype.str, array.shape)
    return b"".join(parcels.archive([[document], [head, array.tobytes()]]))


HEADERS = [
    {"descr": "|O", "shape": (3,)},
    {"descr": "<f8", "shape": (4,)},
    {"descr": "<f8", "shape": (2**62, 0)},
    {"descr": "<f8", "shape": (2**31, 2**31, 2**31, 0)},
    {"descr": "<f16", "shape": (3,)},
    {"descr": "<U0", "shape": (3,)},
    {"descr": "<M8", "shape": (3,)},
    {"descr": "|V8", "shape": (3,)},
    {"descr": "|i8", "shape": (3,)},
    {"descr": "<i8", "shape": (1,) * 33},
    {"descr": "<i8", "shape": (-3,)},
    {"descr": "<i8', 'x': __import__('os'), 'y': '", "shape": (3,)},
]
PLACED = b'{"values":{"w":null},"arrays":[["w"]]}'


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_headers_of_arrays_that_numpy_should_not_see_are_refused(header: Any) -> None:
    content = _archive_of(PLACED, np.arange(3), parcels.array_header(**header))

    with pytest.raises(InvalidValuesError, match=r"^w: "):
        contents("npz", memoryview(content))
    with pytest.raises(InvalidValuesError, match=r"^w: "):
        unpack("npz", content)


@pytest.mark.parametrize(
    ("descr", "item"),
    [("|b1", b"\2"), ("<U1", b"\xff\xff\xff\xff"), (">U1", b"\0\x11\0\0"), ("<U1", b"\0\0\x11\0"), (">U1", b"a\0\0\0")],
)
def test_bytes_that_are_no_truths_or_characters_are_refused(descr: str, item: bytes) -> None:
    content = _archive_of(PLACED, np.frombuffer(bytes(len(item)) + item, "u1"), parcels.array_header(descr, (2,)))

    with pytest.raises(InvalidValuesError, match=r"^w: "):
        contents("npz", memoryview(content))


def test_no_byte_around_the_files_of_an_archive_can_be_changed_and_none_added_or_left_out() -> None:
    _, content = packed({"w": np.arange(50), "t": np.array(["ab"]), "n": 1})
    inside = {at for start, size in parcels._files(memoryview(content)) for at in range(start, start + size)}
    chosen = random.Random(5)

    for position in set(range(len(content))) - inside:
        bad = bytearray(content)
        bad[position] ^= chosen.randrange(1, 256)
        with pytest.raises(InvalidValuesError):
            contents("npz", memoryview(bad))
    for bad_length in (content[:-1], content + b"\0", b"\0" + content, content[1:], content + content):
        with pytest.raises(InvalidValuesError):
            contents("npz", memoryview(bad_length))


@settings(max_examples=100)
@given(st.binary(max_size=400), st.sampled_from(["json", "npz"]))
def test_any_bytes_are_refused_or_a_parcel_and_nothing_else_happens(content: bytes, parcel_format: str) -> None:
    try:
        contents(parcel_format, memoryview(content))
    except InvalidValuesError:
        return
    unpack(parcel_format, content)
