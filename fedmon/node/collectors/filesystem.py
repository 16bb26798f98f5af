"""Space of the local file systems that answer at once."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Why, why
from fedmon.node.collectors.files import KernelFile, Reasons, SourceCollector, Values, miss

MAX_MOUNTS = 64
"""File systems beyond this number are left out: a pool of ZFS can hold thousands."""

LOCAL_TYPES = frozenset(
    {
        *("apfs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "hfsplus", "jfs", "msdos"),
        *("nilfs2", "ntfs", "ntfs3", "overlay", "reiserfs", "tmpfs", "ufs", "vfat", "xfs", "zfs"),
    }
)
"""Types whose kernel driver answers statvfs from memory; any other may wait for a server or a program."""

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
FILESYSTEM = ("host_filesystem_size_bytes", "host_filesystem_free_bytes", "host_filesystem_available_bytes")


class Mounts(msgspec.Struct, frozen=True, kw_only=True):
    """Mount points to read at each tick, and the reasons of all others."""

    readable: tuple[str, ...]
    unread: dict[str, str]


@functools.lru_cache(maxsize=1)
def parse_mounts(text: bytes) -> Mounts:
    """Choose from the text of ``/proc/self/mounts``.

    Left out silently: pseudo file systems, memory other than /tmp and /dev/shm, images, container layers, and the
    second mount of one device. Source of the format: fstab(5).
    """
    entries: dict[str, tuple[str, str]] = {}
    for line in filter(None, text.split(b"\n")):  # other line ends may stand in names, which any user may give
        device, point, kind, _ = line.decode(errors="surrogateescape").split(" ", 3)
        entries[_unescaped(point)] = (device, kind)  # a later mount hides an earlier one
    return choose_mounts(entries)


def choose_mounts(entries: dict[str, tuple[str, str]]) -> Mounts:
    """Choose from mount points with their device and type, the last mount of each point."""
    foreign = [point for point, (_, kind) in entries.items() if kind not in _KNOWN_TYPES]
    unread = {
        point: f"{Why.UNSUPPORTED.value}: {entries[point][1]} is not read because it could block" for point in foreign
    }
    readable: list[str] = []
    devices: set[tuple[str, str]] = set()
    for point in sorted(entries, key=lambda point: (len(point), point)):
        device, kind = entries[point]
        if point in unread or kind in PSEUDO_TYPES or not _worth_reading(point, kind):
            continue
        above = next((other for other in foreign if other != "/" and point.startswith(f"{other}/")), None)
        if above is not None:
            unread[point] = f"{Why.UNSUPPORTED.value}: it is below {above}, which could block"
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


class FilesystemCollector(SourceCollector):
    """Reads the mounts, and asks each local one for its space; without ``statvfs`` they are another machine's."""

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        statvfs: Callable[[str], os.statvfs_result] | None = os.statvfs,
        read_mounts: Callable[[], Mounts] | None = None,
    ) -> None:
        file = KernelFile(proc / "self" / "mounts")
        none = f"{Why.NOT_FOUND.value}: no local file system is mounted"
        super().__init__("filesystem", Lane.MEDIUM, FILESYSTEM, where=file.path, untold=none, files=[file])
        self._read_mounts, self._statvfs = read_mounts or (lambda: parse_mounts(file.read())), statvfs
        self._mounts = Mounts(readable=(), unread={})

    def probe(self) -> dict[str, str | None]:
        """Report whether the mounts can be read, and the reason of each unread mount."""
        report = super().probe()
        unread = {
            series(FILESYSTEM[0], mountpoint=_printable(point)): why for point, why in self._mounts.unread.items()
        }
        return report | unread

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        if self._statvfs is None:
            raise CollectorUnavailableError(Why.UNSUPPORTED, "a simulated tree lists other mounts than this machine")
        values: Values = {}
        reasons: Reasons = {}
        before, self._mounts = self._mounts, self._read_mounts()
        self.probe_changed |= self._mounts != before
        for point in self._mounts.readable:
            keys = [series(metric, mountpoint=_printable(point)) for metric in FILESYSTEM]
            try:
                space = self._statvfs(point)
            except OSError as error:
                miss(values, reasons, keys, why(error).reason)
            else:
                blocks = (space.f_blocks, space.f_bfree, space.f_bavail)
                values.update(zip(keys, (number * space.f_frsize for number in blocks), strict=True))
        return values, reasons


def _printable(point: str) -> str:
    return point.encode(errors="surrogateescape").decode(errors="replace")
