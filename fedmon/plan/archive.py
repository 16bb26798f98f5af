"""The zip files that arrays travel in: stored members one after the other, and nothing between or around them.

Any reader of zip files, such as numpy.load, reads them; ours reads only those that are laid out as ours are written:
members in the order of the directory, without compression, encryption, comments, or bytes that belong to none, and the
sizes at every place the same. The data of each member begin at a multiple of 64 bytes, so that arrays are used where
they lie. Source: APPNOTE.TXT 6.3.10 of PKWARE, sections 4.3 to 4.5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from fedmon.common.errors import InvalidInputError
from fedmon.plan.values import MAX_ARRAYS

ALIGNMENT = 64
MAX_MEMBERS = MAX_ARRAYS + 1
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_ZIP64 = struct.Struct("<2H2Q")
_ZIP64_CENTRAL = struct.Struct("<2H3Q")
_VERSION, _ZIP64_ID, _PADDING_ID = 45, 1, 0xFEDA
_DATE = (1 << 5) | 1  # 1 January 1980, the first that a zip file can say: equal values make equal bytes
_FULL = 0xFFFFFFFF
_CRC_CHUNK = 1 << 20


class Member:
    """One file of an archive: its name and where its bytes are."""

    __slots__ = ("crc", "name", "offset", "size")

    def __init__(self, *, name: str, offset: int, size: int, crc: int) -> None:
        self.name, self.offset, self.size, self.crc = name, offset, size, crc


def local_header(name: str, offset: int, size: int, crc: int) -> bytes:
    """Return what stands before a member's data when it begins at ``offset``."""
    extra = _ZIP64.pack(_ZIP64_ID, 16, size, size)
    padding = _local_bytes(name, offset) - _LOCAL.size - len(name) - len(extra) - 4
    extra += struct.pack("<2H", _PADDING_ID, padding) + bytes(padding)
    fixed = _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, _DATE, crc, _FULL, _FULL, len(name), len(extra))
    return fixed + name.encode("ascii") + extra


def directory(members: Sequence[Member]) -> bytes:
    """Return what stands after the last member; ``offset`` of a member is here where its local header begins."""
    entries = b"".join(map(_entry, members))
    start = 0
    if members:
        last = members[-1]
        start = last.offset + _local_bytes(last.name, last.offset) + last.size
    count = len(members)
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, len(entries), start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + len(entries), 1)
    end = _END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, _FULL, _FULL, 0)
    return entries + end64 + locator + end


def read(buffer: memoryview) -> list[Member]:
    """Return the members of an archive of ours, with where their data begin. Raises InvalidInputError."""
    count, start, entries_bytes = _read_tail(buffer)
    members: list[Member] = []
    position, offset = start, 0
    for _ in range(count):
        member, position = _read_entry(buffer, position, offset)
        offset = member.offset + member.size
        members.append(member)
    if offset != start or position != start + entries_bytes:
        raise InvalidInputError("the archive has bytes that belong to no member")
    return members


def crc_of(data: memoryview, crc: int = 0) -> int:
    """Return the checksum that zip files have, of data that follow on those with the checksum ``crc``."""
    for begin in range(0, len(data), _CRC_CHUNK):
        crc = zlib.crc32(data[begin : begin + _CRC_CHUNK], crc)
    return crc


def _local_bytes(name: str, offset: int) -> int:
    least = _LOCAL.size + len(name) + _ZIP64.size + 4
    return least + (-(offset + least) % ALIGNMENT)


def _tail_bytes() -> int:
    return _END64.size + _LOCATOR.size + _END.size


def _entry(member: Member) -> bytes:
    extra = _ZIP64_CENTRAL.pack(_ZIP64_ID, 24, member.size, member.size, member.offset)
    fixed = _CENTRAL.pack(
        b"PK\1\2", _VERSION, _VERSION, 0, 0, 0, _DATE, member.crc, _FULL, _FULL,
        len(member.name), len(extra), 0, 0, 0, 0, _FULL,
    )  # fmt: skip
    return fixed + member.name.encode("ascii") + extra


def _read_tail(buffer: memoryview) -> tuple[int, int, int]:
    """Return the number of members, where the directory begins, and its length without the tail."""
    where = len(buffer) - _tail_bytes()
    if where < 0:
        raise InvalidInputError("no archive: it is too short")
    tail = bytes(buffer[where:])
    if tail[:4] != b"PK\6\6":
        raise InvalidInputError("no archive of arrays as fedmon writes them")
    *_, count, entries_bytes, start = _END64.unpack_from(tail)
    if count > MAX_MEMBERS or start + entries_bytes != where:
        raise InvalidInputError("the directory of the archive does not lie where it says")
    expected = (
        _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, entries_bytes, start)
        + _LOCATOR.pack(b"PK\6\7", 0, where, 1)
        + _END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, _FULL, _FULL, 0)
    )
    if tail != expected:
        raise InvalidInputError("no archive of arrays as fedmon writes them")
    return count, start, entries_bytes


def _read_entry(buffer: memoryview, position: int, offset: int) -> tuple[Member, int]:
    """Read an entry of the directory, and compare entry and local header with what ours would be."""
    fixed = bytes(buffer[position : position + _CENTRAL.size])
    if len(fixed) < _CENTRAL.size:
        raise InvalidInputError("the directory of the archive is cut off")
    crc, name_bytes = int.from_bytes(fixed[16:20], "little"), int.from_bytes(fixed[28:30], "little")
    end = position + _CENTRAL.size + name_bytes + _ZIP64_CENTRAL.size
    rest = bytes(buffer[position + _CENTRAL.size : end])
    name = rest[:name_bytes].decode("ascii", "replace")
    if len(rest) != end - position - _CENTRAL.size or not name.isascii():
        raise InvalidInputError("the archive has a member with a name that is none of ours")
    _, _, size, _, _ = _ZIP64_CENTRAL.unpack_from(rest, name_bytes)
    if fixed + rest != _entry(Member(name=name, offset=offset, size=size, crc=crc)):
        raise InvalidInputError(f"member {name!r} of the archive is not stored as fedmon stores it")
    expected = local_header(name, offset, size, crc)
    begin = offset + len(expected)
    if begin + size > len(buffer) or bytes(buffer[offset:begin]) != expected:
        raise InvalidInputError(f"member {name!r} of the archive is not where the directory says")
    return Member(name=name, offset=begin, size=size, crc=crc), end
