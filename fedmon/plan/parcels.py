"""Values as bytes: a JSON object if there is no array, else a ``.npz`` file with a document and the arrays.

The first file, ``document.json``, is ``{"values": ..., "arrays": [[...], ...]}``: the values with null in place of
arrays, and for each array, ``0.npy``, ``1.npy`` and so on, its place as a list of keys and indices. numpy.load reads
it; our reader needs neither numpy nor eval, and accepts only archives with exactly our bytes around the files: no
compression, and each file at a multiple of 64 bytes, used without a copy.
Sources: APPNOTE.TXT 6.3.10 of PKWARE, sections 4.3 to 4.5; numpy.lib.format, version 1.0.
"""

from __future__ import annotations

from fedmon.common.errors import InvalidInputError
from fedmon.plan.values import (
    MAX_ARRAYS,
    MAX_DEPTH,
    MAX_DIMENSIONS,
    MAX_DOCUMENT_BYTES,
    InvalidValuesError,
    TooLargeError,
    ValuesWalk,
    json_text,
    read_object,
    spelled,
)

__all__ = [
    "InvalidValuesError", "Packed", "TooLargeError", "archive", "contents", "pack", "read_inputs", "unpack",
]  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any, Literal

    import numpy.typing as npt

    Piece = bytes | memoryview
    PlacedArray = tuple[list[str | int], str, tuple[int, ...], bool, int]
    """Its place among the values, its type, its shape, whether it is in Fortran's order, and the offset of its data."""

DOCUMENT = "document.json"
_ALIGNMENT = 64
_CENTRAL, _CENTRAL_BYTES = "<4s6H3L5H2L", 46
_ZIP64, _ZIP64_BYTES = "<2H3Q", 28
_END64, _END64_BYTES, _TAIL_BYTES = "<4sQ2H2L4Q", 56, 98
_VERSION, _ZIP64_ID, _PADDING_ID, _FULL = 45, 1, 0xFEDA, 0xFFFFFFFF
_DATE = (1 << 5) | 1  # 1 January 1980, the first that a zip file can say: equal values make equal bytes
_NUMPY = b"\x93NUMPY\x01\x00"
_HEADER = (
    rb"\x93NUMPY\x01\x00..\{'descr': '(\|(?:[biu]1|S[1-9]\d{0,6})|[<>](?:[iuf][248]|f2|c8|c16|U[1-9]\d{0,6}))', "
    rb"'fortran_order': (True|False), 'shape': \((\d*(?:, \d+)*),?\), \} *\n"
)


class Packed:
    """Values ready to leave; ``pieces`` share the memory of contiguous arrays, so do not change these before."""

    def __init__(self, parcel_format: Literal["json", "npz"], pieces: Sequence[Piece]) -> None:
        self.format, self.pieces = parcel_format, pieces
        self.size_bytes = sum(map(len, pieces))


def pack(values: Mapping[str, Any], *, max_bytes: int | None = None) -> Packed:
    """Make values into a parcel; needs numpy only for arrays.

    JSON values travel: texts, finite numbers, truths, None, lists, tuples (as lists) and mappings with text keys, at
    most 32 deep and 16 MiB; numpy's scalars as these; and arrays of truths, integers, floats, complex numbers and texts
    of any shape, with NaN allowed. Raises InvalidValuesError naming the place of anything else, such as
    ``model.w: an array of objects``; and TooLargeError if the values alone have more than ``max_bytes``.
    """
    walk = ValuesWalk(max_bytes=max_bytes)
    plain = walk.named(values)
    document = json_text({"values": plain, "arrays": walk.places} if walk.arrays else plain).encode()
    files: list[list[Piece]] = [[document], *map(_npy, walk.arrays)]
    if len(document) > MAX_DOCUMENT_BYTES:
        raise InvalidValuesError(f"{len(document)} bytes of JSON, more than {MAX_DOCUMENT_BYTES}: send arrays")
    return Packed("npz", archive(files)) if walk.arrays else Packed("json", files[0])


def unpack(parcel_format: str, buffer: Any) -> dict[str, Any]:
    """Return the values of a parcel; arrays share the memory of the buffer, and are writable if it is.

    Raises InvalidValuesError if the bytes are not a parcel, or if arrays need numpy and it is missing.
    """
    view = memoryview(buffer).cast("B")
    values, arrays = contents(parcel_format, view)
    if not arrays:
        return values
    try:
        import numpy as np
    except ImportError as error:
        raise InvalidValuesError(f"the values hold arrays, and this Python has no numpy ({error})") from None
    for place, descr, shape, is_fortran, offset in arrays:
        _container(values, place)[place[-1]] = np.ndarray(shape, descr, view, offset, order="F" if is_fortran else "C")
    return values


def read_inputs(path: Path) -> dict[str, Any]:
    """Return the values in a file: a JSON object, a file of ours, or any ``.npz`` of plain arrays.

    Raises InvalidInputError naming the file.
    """
    import zipfile
    import zlib

    try:
        content = path.expanduser().read_bytes()
        if content[:2] != b"PK":
            return read_object(memoryview(content))
        try:
            return unpack("npz", content)
        except InvalidValuesError:
            import io

            import numpy as np

            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except (ImportError, OSError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInputError(f"{path} holds no inputs: {error}") from None


def contents(parcel_format: str, view: memoryview) -> tuple[dict[str, Any], list[PlacedArray]]:
    """Return the values of a parcel, with None in place of arrays, and these arrays. Raises InvalidValuesError."""
    if parcel_format == "json":
        return read_object(view), []
    if parcel_format != "npz":
        raise InvalidValuesError(f"the format {parcel_format[:40]!r}, which is neither json nor npz")
    (start, size), *files = _files(view)
    document = read_object(view[start : start + size], max_depth=MAX_DEPTH + 1)  # one more around the values
    values, places = document.get("values"), document.get("arrays")
    if set(document) != {"values", "arrays"} or not isinstance(values, dict) or not isinstance(places, list):
        raise InvalidValuesError("an archive whose document has not values and arrays")
    if not 0 < len(places) == len(files):
        raise InvalidValuesError(f"an archive whose document does not fit its {len(files)} arrays")
    for place in places:
        _check_place(values, place)
    parts = zip(places, files, strict=True)
    return values, [_placed(place, view[start : start + size], start) for place, (start, size) in parts]


def _container(values: dict[str, Any], place: list[str | int]) -> Any:
    """Return the container of a place. Raises LookupError and TypeError if there is none."""
    container: Any = values
    for step in place[:-1]:
        container = container[step]
    return container


def _check_place(values: dict[str, Any], place: Any) -> None:
    """Raise InvalidValuesError if this is no free place for an array among the values."""
    try:
        is_free = isinstance(place, list) and _container(values, place)[place[-1]] is None
    except (LookupError, TypeError):
        is_free = False
    if not is_free:
        raise InvalidValuesError(f"an archive with {str(place)[:80]}, which is no free place for an array")


def archive(files: Sequence[Sequence[Piece]]) -> list[Piece]:
    """Return an archive of these files, each in pieces; the contents are not copied."""
    import zlib

    members = []
    for pieces in files:
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        members.append((sum(map(len, pieces)), crc))
    heads, _, directory = _layout(members)
    return [piece for head, pieces in zip(heads, files, strict=True) for piece in (head, *pieces)] + [directory]


def _files(view: memoryview) -> list[tuple[int, int]]:
    """Return the offset and size of each file's data in an archive; everything around them is checked."""
    from struct import error, unpack_from

    members: list[tuple[int, int]] = []
    try:
        *_, count, _, position = unpack_from(_END64, view, len(view) - _TAIL_BYTES)
        for number in range(min(count, MAX_ARRAYS + 1)):
            crc = unpack_from(_CENTRAL, view, position)[7]
            position += _CENTRAL_BYTES + len(_name(number))
            members.append((unpack_from(_ZIP64, view, position)[2], crc))
            position += _ZIP64_BYTES
        heads, starts, directory = _layout(members)
        parts = [(start - len(head), head) for head, start in zip(heads, starts, strict=True)]
        parts.append((starts[-1] + members[-1][0], directory))
        if len(view) == parts[-1][0] + len(directory) and all(view[at : at + len(part)] == part for at, part in parts):
            return [(start, size) for start, (size, _) in zip(starts, members, strict=True)]
    except (error, OverflowError, IndexError):
        pass
    raise InvalidValuesError("no archive of arrays as fedmon writes them")


def _name(number: int) -> bytes:
    return f"{number - 1}.npy".encode() if number else DOCUMENT.encode()


def _layout(members: Sequence[tuple[int, int]]) -> tuple[list[bytes], list[int], bytes]:
    """Return the head of each file by its size and checksum, the offset of its data, and the end of the archive."""
    from struct import pack as packed

    heads, starts, entries, offset = [], [], bytearray(), 0
    for number, (size, crc) in enumerate(members):
        name = _name(number)
        about = (_DATE, crc, _FULL, _FULL, len(name))
        extra = packed("<2H2Q", _ZIP64_ID, 16, size, size)
        padding = -(offset + 30 + len(name) + len(extra) + 4) % _ALIGNMENT  # 30 and 4 are what both below begin with
        extra += packed("<2H", _PADDING_ID, padding) + bytes(padding)
        heads.append(packed("<4s5H3L2H", b"PK\3\4", _VERSION, 0, 0, 0, *about, len(extra)) + name + extra)
        extra = packed(_ZIP64, _ZIP64_ID, 24, size, size, offset)
        fixed = (b"PK\1\2", _VERSION, _VERSION, 0, 0, 0, *about, len(extra), 0, 0, 0, 0, _FULL)
        entries += packed(_CENTRAL, *fixed) + name + extra
        starts.append(offset + len(heads[-1]))
        offset = starts[-1] + size
    count = len(members)
    end = packed(_END64, b"PK\6\6", _END64_BYTES - 12, _VERSION, _VERSION, 0, 0, count, count, len(entries), offset)
    end += packed("<4sLQL", b"PK\6\7", 0, offset + len(entries), 1)
    return heads, starts, bytes(entries) + end + packed("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, _FULL, _FULL, 0)


def _npy(array: npt.NDArray[Any]) -> list[Piece]:
    """Return a ``.npy`` file: its header, and the memory of the array, or of a contiguous copy."""
    import numpy as np

    plain = np.asarray(array)
    if not plain.dtype.itemsize:  # texts of a structured array, all of them empty
        plain = plain.astype(plain.dtype.kind + "1")
    header = array_header(plain.dtype.str, plain.shape, is_fortran=plain.flags.fnc)
    return [header, plain.ravel(order="A").view(np.uint8).data]


def array_header(descr: str, shape: tuple[int, ...], *, is_fortran: bool = False) -> bytes:
    """Return the header of an array as numpy.save writes it, a multiple of 64 bytes."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {is_fortran!r}, 'shape': {shape!r}, }}"
    text += " " * (-(len(_NUMPY) + 2 + len(text) + 1) % _ALIGNMENT) + "\n"
    return _NUMPY + len(text).to_bytes(2, "little") + text.encode("ascii")


def _placed(place: list[str | int], data: memoryview, start: int) -> PlacedArray:
    """Read a ``.npy`` file with a header of `array_header`; numpy relies on its truths and characters."""
    import re
    from math import prod

    found = re.match(_HEADER, bytes(data[:2048]), re.DOTALL)
    if found is not None:
        descr, is_fortran = found[1].decode(), found[2] == b"True"
        shape = tuple(int(size) for size in found[3].split(b",") if size)
        header = array_header(descr, shape, is_fortran=is_fortran)
        item_bytes = int(descr[2:]) * (4 if descr[1] == "U" else 1)
        # Numpy multiplies the sizes that are not 0, also of an array without elements.
        is_sound = len(shape) <= MAX_DIMENSIONS and prod(size or 1 for size in shape) * item_bytes <= 2**62
        is_sound = is_sound and found[0] == header and len(data) == len(header) + prod(shape) * item_bytes
        items, is_little = data[len(header) :], descr[0] == "<"
        if is_sound and descr[1] == "U":  # a character is at most 0x10FFFF
            beyond = bytes(items[3 * is_little :: 4]).strip(b"\0")
            is_sound = not (beyond or bytes(items[1 + is_little :: 4]).translate(None, bytes(range(0x11))))
        if is_sound and not (descr[1] == "b" and re.search(rb"[^\0\1]", items)):
            return place, descr, shape, is_fortran, start + len(header)
    raise InvalidValuesError(f"{spelled(place)}: no array as numpy writes it, of truths, numbers or texts")
