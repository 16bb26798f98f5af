"""The ``.npz`` files that arrays travel in: a zip file of stored ``.npy`` files, read without numpy and without eval.

Any reader of zip files, such as numpy.load, reads them; ours reads only those that are laid out as ours are written:
members in the order of the directory, without compression, encryption, comments, or bytes that belong to none. The
data of each member begin at a multiple of 64 bytes, so that arrays are used where they lie.
Sources: APPNOTE.TXT 6.3.10 of PKWARE, sections 4.3 to 4.5; numpy.lib.format, version 1.0.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from fedmon.common.errors import InvalidInputError
from fedmon.plan.values import MAX_ARRAYS, MAX_DIMENSIONS

DOCUMENT = "document.json"
"""The first member, of which the others are the arrays."""
ALIGNMENT = 64
MAX_MEMBERS = MAX_ARRAYS + 1
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_ZIP64 = struct.Struct("<2H2Q")
_ZIP64_CENTRAL = struct.Struct("<2H3Q")
_TAIL_BYTES = _END64.size + _LOCATOR.size + _END.size
_VERSION, _ZIP64_ID, _PADDING_ID = 45, 1, 0xFEDA
_DATE = (1 << 5) | 1  # 1 January 1980, the first that a zip file can say: equal values make equal bytes
_FULL = 0xFFFFFFFF
_CRC_CHUNK = 1 << 20

MAX_TEXT_ITEM = 1 << 20
"""Characters, or bytes, in one element of an array of texts."""
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

Piece = bytes | memoryview


class Member(NamedTuple):
    """One file of an archive: its name, where its local header begins, and size and checksum of its data."""

    name: str
    offset: int
    size: int
    crc: int

    @property
    def data_offset(self) -> int:
        """Where the data begin, the next multiple of 64 bytes after the local header."""
        least = self.offset + _LOCAL.size + len(self.name) + _ZIP64.size + 4
        return least + -least % ALIGNMENT

    @property
    def end(self) -> int:
        """Where the data end, and the next member begins."""
        return self.data_offset + self.size

    def data(self, archive: memoryview) -> memoryview:
        """Return the data of this member of an archive."""
        return archive[self.data_offset : self.end]


def write(files: Sequence[tuple[str, Sequence[Piece]]]) -> list[Piece]:
    """Return an archive of these files, in pieces; the memory of the contents is used where it lies."""
    pieces: list[Piece] = []
    members: list[Member] = []
    for name, parts in files:
        crc = 0
        for part in parts:
            crc = crc_of(memoryview(part), crc)
        offset = members[-1].end if members else 0
        members.append(Member(name, offset, sum(map(len, parts)), crc))
        pieces += [_local_header(members[-1]), *parts]
    return [*pieces, _directory(members)]


def read(buffer: memoryview) -> list[Member]:
    """Return the members of an archive of ours; reads all but their data. Raises InvalidInputError."""
    where = len(buffer) - _TAIL_BYTES
    if where < 0:
        raise InvalidInputError("no archive: it is too short")
    signature, *_, count, entries_bytes, start = _END64.unpack_from(buffer, where)
    if signature != b"PK\6\6":
        raise InvalidInputError("no archive of arrays as fedmon writes them")
    if count > MAX_MEMBERS or start + entries_bytes != where:
        raise InvalidInputError("the directory of the archive does not lie where it says")
    members: list[Member] = []
    position = start
    for _ in range(count):
        member, position = _entry(buffer, position, members[-1].end if members else 0)
        head = _local_header(member)
        if member.end > start or bytes(buffer[member.offset : member.data_offset]) != head:
            raise InvalidInputError(f"member {member.name!r} of the archive is not where the directory says")
        members.append(member)
    if bytes(buffer[start:]) != _directory(members):
        raise InvalidInputError("no archive of arrays as fedmon writes them")
    return members


def crc_of(data: memoryview, crc: int = 0) -> int:
    """Return the checksum that zip files have, of data that follow on those with the checksum ``crc``."""
    for begin in range(0, len(data), _CRC_CHUNK):
        crc = zlib.crc32(data[begin : begin + _CRC_CHUNK], crc)
    return crc


def _local_header(member: Member) -> bytes:
    name, size = member.name.encode("ascii"), member.size
    extra = _ZIP64.pack(_ZIP64_ID, 16, size, size)
    padding = member.data_offset - member.offset - _LOCAL.size - len(name) - len(extra) - 4
    extra += struct.pack("<2H", _PADDING_ID, padding) + bytes(padding)
    fixed = _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, _DATE, member.crc, _FULL, _FULL, len(name), len(extra))
    return fixed + name + extra


def _directory(members: Sequence[Member]) -> bytes:
    """Return what stands after the last member."""
    entries = bytearray()
    for member in members:
        name, size = member.name.encode("ascii"), member.size
        extra = _ZIP64_CENTRAL.pack(_ZIP64_ID, 24, size, size, member.offset)
        entries += _CENTRAL.pack(
            b"PK\1\2", _VERSION, _VERSION, 0, 0, 0, _DATE, member.crc, _FULL, _FULL,
            len(name), len(extra), 0, 0, 0, 0, _FULL,
        )  # fmt: skip
        entries += name + extra
    start, count = members[-1].end if members else 0, len(members)
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, len(entries), start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + len(entries), 1)
    return bytes(entries) + end64 + locator + _END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, _FULL, _FULL, 0)


def _entry(buffer: memoryview, position: int, offset: int) -> tuple[Member, int]:
    """Read name, size and checksum from an entry of the directory; return where the next one begins."""
    try:
        fixed = _CENTRAL.unpack_from(buffer, position)
        crc, name_bytes = fixed[7], fixed[10]
        position += _CENTRAL.size + name_bytes
        name = bytes(buffer[position - name_bytes : position]).decode("ascii")
        _, _, size, _, _ = _ZIP64_CENTRAL.unpack_from(buffer, position)
    except (struct.error, UnicodeDecodeError):
        raise InvalidInputError("the archive has a member that is not stored as fedmon stores it") from None
    return Member(name, offset, size, crc), position + _ZIP64_CENTRAL.size


class ArrayHeader(NamedTuple):
    """What the header of an array says; ``data_offset`` is where its data begin, from the start of the file."""

    descr: str
    fortran_order: bool
    shape: tuple[int, ...]
    data_offset: int

    @property
    def data_bytes(self) -> int:
        """The size of the data."""
        return math.prod(self.shape) * item_bytes(self.descr)


def item_bytes(descr: str) -> int:
    """Return the size of one element. Raises InvalidInputError for a type that does not travel."""
    kind, size = descr[1:2], descr[2:]
    if kind in "US" and size.isdecimal() and 0 < int(size) <= MAX_TEXT_ITEM:
        return int(size) * (4 if kind == "U" else 1)
    if descr[1:] in _ITEM_BYTES:
        return _ITEM_BYTES[descr[1:]]
    raise InvalidInputError(f"an array of type {descr!r}")


def array_header(*, descr: str, fortran_order: bool, shape: tuple[int, ...]) -> bytes:
    """Return the header, as long as a multiple of 64 bytes, as numpy.save writes it."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran_order!r}, 'shape': {shape!r}, }}"
    used = len(_MAGIC) + 2 + len(text) + 1
    text += " " * (-used % ALIGNMENT) + "\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii")


def read_array_header(data: memoryview) -> ArrayHeader:
    """Read the header of a ``.npy`` file of which ``data`` are all bytes.

    Nothing but what `array_header` writes is understood; the length of the data has to be what type and shape say.
    Raises InvalidInputError saying what is wrong.
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
    header = ArrayHeader(descr, found["fortran"] == "True", shape, len(start) + length)
    given = len(data) - header.data_offset
    if header.data_bytes != given:
        raise InvalidInputError(f"{given} bytes of data where type and shape need {header.data_bytes}")
    return header
