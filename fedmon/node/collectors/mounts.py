"""Which mounted file systems can be asked for their space without any risk of waiting."""

from __future__ import annotations

import re

import msgspec

from fedmon.node.collectors.base import Why

MAX_MOUNTS = 64
"""File systems beyond this number are left out, so that one sample always fits into a message."""

LOCAL_TYPES = frozenset(
    {
        *("apfs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "hfsplus", "jfs", "msdos"),
        *("nilfs2", "ntfs", "ntfs3", "overlay", "reiserfs", "tmpfs", "ufs", "vfat", "xfs", "zfs"),
    }
)
"""Types whose kernel driver answers statvfs from memory; any other may ask a server or a program, and wait for it."""

PSEUDO_TYPES = frozenset(
    {
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devfs", "devpts", "devtmpfs"),
        *("efivarfs", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fusectl", "hugetlbfs", "iso9660", "mqueue"),
        *("nsfs", "proc", "procfs", "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs"),
        "tracefs",
    }
)
_TMPFS_WORTH_READING = frozenset({"/tmp", "/dev/shm"})  # noqa: S108 - compared with mount points, never written
_KNOWN_TYPES = LOCAL_TYPES | PSEUDO_TYPES
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mounts(msgspec.Struct, frozen=True, kw_only=True):
    """Mount points to read at each tick, and those that are not read, with the reason."""

    readable: tuple[str, ...]
    unread: dict[str, str]


def parse_mounts(text: bytes) -> Mounts:
    """Choose from the text of ``/proc/self/mounts``.

    Left out silently: pseudo file systems, memory other than /tmp and /dev/shm, images, container layers, and the
    second mount of one device. Source of the format: fstab(5).
    """
    entries: dict[str, tuple[str, str]] = {}
    for line in text.decode(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        if len(fields) >= 3:
            entries[_unescaped(fields[1])] = (fields[0], fields[2])  # a later mount hides an earlier one
    return choose_mounts(entries)


def choose_mounts(entries: dict[str, tuple[str, str]]) -> Mounts:
    """Choose from mount points with their device and type, the last mount of each point."""
    foreign = [point for point, (_, kind) in entries.items() if kind not in _KNOWN_TYPES]
    unread = {
        point: f"{Why.UNSUPPORTED.value}: {entries[point][1]} is not read because it could keep us waiting"
        for point in foreign
    }
    readable: list[str] = []
    devices: set[tuple[str, str]] = set()
    for point in sorted(entries, key=lambda point: (len(point), point)):
        device, kind = entries[point]
        if point in unread or kind in PSEUDO_TYPES or not _worth_reading(point, kind):
            continue
        above = next((other for other in foreign if other != "/" and point.startswith(f"{other}/")), None)
        if above is not None:
            unread[point] = f"{Why.UNSUPPORTED.value}: it lies below {above}, which could keep us waiting"
        elif kind == "tmpfs" or (device, kind) not in devices:
            devices.add((device, kind))
            readable.append(point)
    return Mounts(readable=tuple(readable[:MAX_MOUNTS]), unread=unread)


def _worth_reading(point: str, kind: str) -> bool:
    if kind == "tmpfs":
        return point in _TMPFS_WORTH_READING
    return kind != "overlay" or point == "/"


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
