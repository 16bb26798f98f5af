from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmon.node.collectors.filesystem import MAX_MOUNTS, FilesystemCollector, parse_mounts
from tests.support.energy_tree import at

SPACE = os.statvfs_result((4096, 4096, 1000, 400, 300, 0, 0, 0, 0, 255))


def mounts(*lines: str) -> bytes:
    return "".join(f"{line} rw,relatime 0 0\n" for line in lines).encode()


def filesystems(tmp_path: Path, text: bytes, statvfs: Callable[[str], os.statvfs_result]) -> FilesystemCollector:
    (tmp_path / "self").mkdir(exist_ok=True)
    (tmp_path / "self" / "mounts").write_bytes(text)
    return FilesystemCollector(proc=tmp_path, statvfs=statvfs)


MOUNTS: dict[str, tuple[str, tuple[str, ...], set[str]]] = {
    "pseudo file systems, images and layers are left out": (
        """
        overlay / overlay
        proc /proc proc
        sysfs /sys sysfs
        cgroup2 /sys/fs/cgroup cgroup2
        tmpfs /run tmpfs
        tmpfs /dev/shm tmpfs
        tmpfs /tmp tmpfs
        /dev/loop3 /snap/core squashfs
        overlay /var/lib/docker/overlay2/ab/merged overlay
        /dev/sda1 /data ext4
        systemd-1 /mnt/auto autofs
        """,
        ("/", "/tmp", "/data", "/dev/shm"),
        set(),
    ),
    "one device is reported once at its shortest mount point": (
        """
        /dev/vda /etc/resolv.conf ext4
        /dev/vda /data ext4
        /dev/vda /var/lib/data ext4
        pool/a /pool/a zfs
        pool/b /pool/b zfs
        """,
        ("/data", "/pool/a", "/pool/b"),
        set(),
    ),
    "local disks of a machine that boots over the network are read": (
        "server:/root / nfs4 \n /dev/sda1 /scratch xfs", ("/scratch",), {"/"}
    ),
    "a server over a disk hides it": ("/dev/sda1 /data ext4 \n server:/x /data nfs", (), {"/data"}),
    "a disk over a server hides it": ("server:/x /data nfs \n /dev/sda1 /data ext4", ("/data",), set()),
}  # fmt: skip


@pytest.mark.parametrize("name", MOUNTS)
def test_mounts_that_are_read_and_those_that_are_not(name: str) -> None:
    lines, readable, unread = MOUNTS[name]

    chosen = parse_mounts(mounts(*(line.strip() for line in lines.strip().splitlines())))

    assert (chosen.readable, set(chosen.unread)) == (readable, unread)


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_what_may_wait_for_a_server_is_never_asked_and_says_why(tmp_path: Path, kind: str) -> None:
    asked: list[str] = []

    def statvfs(point: str) -> os.statvfs_result:
        asked.append(point)
        return SPACE

    text = mounts("/dev/sda1 / ext4", f"server:/x /mnt {kind}", "/dev/sdb1 /mnt/local ext4", "/dev/sdc1 /mntb ext4")
    collector = filesystems(tmp_path, text, statvfs)

    collector.collect(at(0.0))
    report = collector.probe()

    assert set(asked) == {"/", "/mntb"}
    assert report == {
        "host_filesystem_size_bytes": None,
        "host_filesystem_free_bytes": None,
        "host_filesystem_available_bytes": None,
        'host_filesystem_size_bytes{mountpoint="/mnt"}': (f"unsupported: {kind} is not read because it could block"),
        'host_filesystem_size_bytes{mountpoint="/mnt/local"}': ("unsupported: it is below /mnt, which could block"),
    }


def test_spaces_and_other_bytes_in_a_mount_point_are_kept(tmp_path: Path) -> None:
    asked: list[str] = []

    def statvfs(point: str) -> os.statvfs_result:
        asked.append(point)
        return SPACE

    text = b"/dev/sda1 /my\\040disk\\134x ext4 rw 0 0\na /b\rc fuse rw 0 0\n/dev/sdb1 /caf\xc3\xa9\xff ext4 rw 0 0\n"
    values = filesystems(tmp_path, text, statvfs).collect(at(0.0)).values

    assert [os.fsencode(point) for point in asked] == [b"/caf\xc3\xa9\xff", b"/my disk\\x"]
    assert 'host_filesystem_size_bytes{mountpoint="/my disk\\\\x"}' in values
    assert 'host_filesystem_size_bytes{mountpoint="/café\N{REPLACEMENT CHARACTER}"}' in values


def test_space_is_in_bytes(tmp_path: Path) -> None:
    collector = filesystems(tmp_path, mounts("/dev/sda1 / ext4"), lambda _point: SPACE)

    assert collector.collect(at(0.0)).values == {
        'host_filesystem_size_bytes{mountpoint="/"}': 4_096_000,
        'host_filesystem_free_bytes{mountpoint="/"}': 1_638_400,
        'host_filesystem_available_bytes{mountpoint="/"}': 1_228_800,
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EACCES, "Permission denied", "/data"), "no permission: /data"),
        (OSError(errno.ENOENT, "No such file or directory", "/data"), "not found: /data"),
        (OSError(errno.EOPNOTSUPP, "Operation not supported", "/data"), "unsupported: /data"),
        (OSError(errno.EIO, "Input/output error", "/data"), "failed: /data: Input/output error"),
        (OSError(errno.EIO, "Input/output error"), "failed: Input/output error"),
    ],
)
def test_one_mount_that_refuses_has_the_reason_and_does_not_disturb_the_others(
    tmp_path: Path, error: OSError, reason: str
) -> None:
    def statvfs(point: str) -> os.statvfs_result:
        if point == "/data":
            raise error
        return SPACE

    collector = filesystems(tmp_path, mounts("/dev/sda1 / ext4", "/dev/sdb1 /data ext4"), statvfs)
    reading = collector.collect(at(0.0))

    assert reading.values['host_filesystem_size_bytes{mountpoint="/"}'] == 4_096_000
    assert reading.values['host_filesystem_size_bytes{mountpoint="/data"}'] is None
    assert reading.reasons['host_filesystem_size_bytes{mountpoint="/data"}'] == reason


def test_a_mount_may_come_and_go(tmp_path: Path) -> None:
    collector = filesystems(tmp_path, mounts("/dev/sda1 / ext4"), lambda _point: SPACE)
    before = collector.collect(at(0.0))
    (tmp_path / "self" / "mounts").write_bytes(mounts("/dev/sda1 / ext4", "/dev/sdb1 /data ext4"))
    both = collector.collect(at(10.0))
    (tmp_path / "self" / "mounts").write_bytes(mounts("/dev/sda1 / ext4"))
    after = collector.collect(at(20.0))

    assert (len(before.values), len(both.values), after) == (3, 6, before)

    collector.probe()
    (tmp_path / "self" / "mounts").write_bytes(mounts("/dev/sda1 / ext4", "server:/x /mnt nfs4"))
    collector.collect(at(40.0))
    assert collector.probe_changed  # so that the server is named in the report


def test_the_number_of_mounts_is_bounded() -> None:
    chosen = parse_mounts(mounts(*(f"/dev/sd{number} /disk{number} xfs" for number in range(500))))

    assert len(chosen.readable) == MAX_MOUNTS
