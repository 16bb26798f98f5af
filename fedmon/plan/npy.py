"""The header of a ``.npy`` file, format 1.0, and the types of arrays that travel; read without numpy and without eval.

Source: numpy.lib.format.
"""

from __future__ import annotations

import math
import re

from fedmon.common.errors import InvalidInputError
from fedmon.plan.values import MAX_DIMENSIONS

MAX_TEXT_ITEM = 1 << 20
"""Characters, or bytes, in one element of an array of texts."""
ALIGNMENT = 64
_MAGIC = b"\x93NUMPY\x01\x00"
_MAX_HEADER = 2048
_MAX_BYTES = 2**62
_ITEM_BYTES = {
    "b1": 1, "i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 1, "u2": 2, "u4": 4, "u8": 8,
    "f2": 2, "f4": 4, "f8": 8, "c8": 8, "c16": 16,
}  # fmt: skip
_HEADER = re.compile(
    r"\{'descr': '(?P<order>[<>|])(?P<kind>[a-zA-Z])(?P<size>[0-9]{1,8})', "
    r"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[0-9, ]*)\), \} *\n",
    re.ASCII,
)
_SHAPE = re.compile(r"|[0-9]{1,19},|[0-9]{1,19}(, [0-9]{1,19})+", re.ASCII)


class ArrayHeader:
    """What the header of an array says; ``data_offset`` is where its data begin, from the start of the file."""

    __slots__ = ("data_bytes", "data_offset", "descr", "fortran_order", "shape")

    def __init__(self, *, descr: str, fortran_order: bool, shape: tuple[int, ...], data_offset: int) -> None:
        self.descr, self.fortran_order, self.shape, self.data_offset = descr, fortran_order, shape, data_offset
        self.data_bytes = math.prod(shape) * item_bytes(descr)


def item_bytes(descr: str) -> int:
    """Return the size of one element. Raises InvalidInputError for a type that does not travel."""
    kind, size = descr[1:2], descr[2:]
    if kind in "US" and size.isdecimal() and 0 < int(size) <= MAX_TEXT_ITEM:
        return int(size) * (4 if kind == "U" else 1)
    if descr[1:] in _ITEM_BYTES:
        return _ITEM_BYTES[descr[1:]]
    raise InvalidInputError(f"an array of type {descr!r}")


def encode(*, descr: str, fortran_order: bool, shape: tuple[int, ...]) -> bytes:
    """Return the header, as long as a multiple of 64 bytes, as numpy.save writes it."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran_order!r}, 'shape': {shape!r}, }}"
    used = len(_MAGIC) + 2 + len(text) + 1
    text += " " * (-used % ALIGNMENT) + "\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii")


def decode(data: memoryview) -> ArrayHeader:
    """Read the header of a file of which ``data`` are all bytes. Raises InvalidInputError saying what is wrong.

    Nothing but what `encode` writes is understood; the length of the data has to be what type and shape say.
    """
    start = bytes(data[: len(_MAGIC) + 2])
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if len(start) < len(_MAGIC) + 2 or not start.startswith(_MAGIC) or length > _MAX_HEADER:
        raise InvalidInputError("no .npy file of format 1.0")
    text = bytes(data[len(start) : len(start) + length])
    found = _HEADER.fullmatch(text.decode("ascii", "replace"))
    if len(text) != length or found is None or not _SHAPE.fullmatch(found["shape"]):
        raise InvalidInputError("a header that is not as numpy writes it")
    descr = found["order"] + found["kind"] + found["size"]
    if (found["order"] == "|") != (found["kind"] in "bS" or (found["size"] == "1" and found["kind"] in "iu")):
        raise InvalidInputError(f"an array of type {descr!r}")
    shape = tuple(int(size) for size in found["shape"].split(",") if size.strip())
    # Numpy multiplies the sizes that are not 0, also of an array without elements.
    if len(shape) > MAX_DIMENSIONS or math.prod(size for size in shape if size) * item_bytes(descr) > _MAX_BYTES:
        raise InvalidInputError(f"an array of shape {str(shape)[:80]}")
    offset = len(start) + length
    read = ArrayHeader(descr=descr, fortran_order=found["fortran"] == "True", shape=shape, data_offset=offset)
    if read.data_bytes != len(data) - offset:
        raise InvalidInputError(f"{len(data) - offset} bytes of data where type and shape need {read.data_bytes}")
    return read
