"""Merging the recordings of a job's hosts: whole, once, again and again, and whatever state a host's file is in."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.common.store.recording import Recording
from fedmon.node.job.hosts import Membership
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.merge import merge
from fedmon.report.source import Source
from tests.common.store.recordings import batch, flat, seqs
from tests.support.databases import execute
from tests.support.full_disk import files_of_at_most


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path, None, "4711")
    folder.make()
    return folder


def record(folder: JobFolder, host: str, samples: int = 100, *, first: int = 0, boot: int = 1) -> Path:
    """Record as the tool on one host does: ten samples at a time."""
    path = folder.recording(host)
    with Recording(path) as recording:
        for seq in range(first, first + samples, 10):
            recording.append([batch(seq, node=host, boot=boot)])
    return path


def only_host(tmp_path: Path, samples: int = 100) -> tuple[JobFolder, Path]:
    """Return the folder of a job on one host, which has ended, and its recording."""
    folder = JobFolder(tmp_path, None, "4711")
    with Membership(folder, host="a") as member:
        member.begin()
        path = record(folder, "a", samples)
        member.end()
    return folder, path


def merged(folder: JobFolder) -> dict[str, list[int]]:
    """Return the numbers of all samples of the merged recording, by node."""
    with Recording(folder.merged, read_only=True) as recording:
        return {node: seqs(recording.read(node)) for node in sorted({one.node_id for one in recording.extents()})}


@pytest.mark.parametrize("key", ["4711", "copy", "run.sqlite"])
def test_everything_of_all_hosts_is_in_the_merged_recording(tmp_path: Path, key: str) -> None:
    folder = JobFolder(tmp_path, None, key)
    folder.make()
    paths = [record(folder, host) for host in ("a", "b", "c")]
    for path, host in zip(paths, "abc", strict=True):
        with Recording(path) as recording:
            recording.describe(host, 1, {"hostname": host, "labels": {"system": "big"}})
            recording.mark(host, 1, "host", 1_760_000_050.0, f"mark of {host}")
            recording.set_all_lost([((host, "host", 1), 100, 109, "the disk was full")])
    assert merge(folder) == {}
    assert not list(folder.path.glob("*.fmr-*"))
    assert folder.merged.stat().st_mode & 0o777 == 0o600
    with Source([folder.merged]) as together, Source(paths) as apart:
        assert together.hosts == apart.hosts
        assert together.marks() == apart.marks()
        lost, of_hosts = (
            [each.lost(one.node_id, one.stream, one.boot) for one in each.streams] for each in (together, apart)
        )
        assert lost == of_hosts
    with Recording(folder.merged, read_only=True) as recording:
        found = flat(recording.read())
    expected = []
    for path in paths:
        with Recording(path, read_only=True) as recording:
            expected += flat(recording.read())
    assert found == expected


def test_merging_again_changes_nothing_and_leaves_the_hosts_files_as_they_are(folder: JobFolder) -> None:
    paths = [record(folder, host) for host in ("a", "b")]
    before = [hashlib.sha256(path.read_bytes()).digest() for path in paths]
    assert merge(folder) == merge(folder) == {}
    assert merged(folder) == {"a": list(range(100)), "b": list(range(100))}
    assert [hashlib.sha256(path.read_bytes()).digest() for path in paths] == before
    assert sorted(each.name for each in folder.path.iterdir()) == ["4711.fmr", "hosts", "logs", "recordings"]


def test_the_recording_of_a_jobs_only_host_is_stored_once_until_another_host_comes(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, None, "4711")
    for host, nodes in (("a", ["a"]), ("b", ["a", "b"])):
        with Membership(folder, host=host) as member:
            member.begin()
            record(folder, host)
            merge(folder)
            assert not folder.merged.is_symlink(), "a recording that is written on another host is never opened"
            folder.merged.unlink()
            member.end()
        merge(folder)
        assert merged(folder) == {node: list(range(100)) for node in nodes}
        assert folder.merged.samefile(folder.recording(host)) == (nodes == ["a"])
        assert sorted({each.suffix for each in folder.recordings.iterdir()}) == [".fmr"], (
            "readers leave no log beside it"
        )


def test_of_a_damaged_recording_of_the_only_host_the_readable_part_is_merged(tmp_path: Path) -> None:
    folder, path = only_host(tmp_path, 3000)
    _DAMAGES["cut off"](path, path.read_bytes())

    assert "damaged: " in merge(folder)[path]
    assert 0 < len(merged(folder)["a"]) < 3000


def test_where_symbolic_links_cannot_be_made_the_only_recording_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = only_host(tmp_path)

    def refuse(*_names: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "symlink", refuse)  # as exFAT and CIFS do
    assert (merge(folder), merged(folder)) == ({}, {"a": list(range(100))})


def test_what_was_merged_outlives_the_files_of_the_hosts(folder: JobFolder) -> None:
    record(folder, "a")
    merge(folder)
    folder.recording("a").unlink()
    record(folder, "b")
    merge(folder)
    assert merged(folder) == {"a": list(range(100)), "b": list(range(100))}


def _of_another(path: Path, _content: bytes) -> None:
    path.unlink()
    execute(path, "CREATE TABLE mine (a)")


_DAMAGES: dict[str, Callable[[Path, bytes], object]] = {
    "cut off": lambda path, content: path.write_bytes(content[: len(content) * 9 // 10]),
    "middle": lambda path, content: path.write_bytes(content[:-80_000] + bytes(20_000) + content[-60_000:]),
    "garbage": lambda path, _content: path.write_bytes(os.urandom(60_000)),
    "other database": _of_another,
    "newer": lambda path, _content: execute(path, "PRAGMA user_version = 999"),
    "empty": lambda path, _content: path.write_bytes(b""),
    "unreadable name": lambda path, _content: path.rename(path.with_name("\udcff.fmr")),
}


@pytest.mark.parametrize("damage", list(_DAMAGES))
def test_a_file_that_is_damaged_costs_no_other_and_is_reported(
    folder: JobFolder, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    record(folder, "a")
    path = record(folder, "b", 3000)
    _DAMAGES[damage](path, path.read_bytes())
    told = list(merge(folder).values())
    found = merged(folder)
    assert found["a"] == list(range(100))
    rescued = found.get("b", [])
    assert len(rescued) == len(set(rescued))
    if damage in ("cut off", "middle", "garbage", "other database", "newer"):
        assert len(told) == 1
        assert str(path) in caplog.text
        assert "set aside" not in caplog.text, "of a copy that is gone now"
        assert bool(rescued) == (damage in ("cut off", "middle"))
    else:
        assert not told


def test_a_host_that_still_writes_is_merged_as_far_as_it_is_and_later_whole(folder: JobFolder) -> None:
    record(folder, "a")
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        with Recording(folder.recording("b")) as recording:
            for seq in range(0, 1_000_000, 10):
                recording.append([batch(seq, node="b")])
                written.append(seq)
                if stop.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    for _ in range(5):
        merge(folder)
        found = merged(folder)
        assert found["a"] == list(range(100))
        assert len(set(found.get("b", []))) == len(found.get("b", []))
        counts.append(len(found.get("b", [])))
    stop.set()
    writer.join()
    assert counts == sorted(counts), "what was merged once is not lost again"
    merge(folder)
    assert merged(folder)["b"] == list(range(written[-1] + 10))


def test_a_recording_that_changes_while_it_is_copied_is_not_called_damaged(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copyfile = record(folder, "a"), shutil.copyfile

    def copy_too_late(source: Path, target: Path) -> None:
        copyfile(source, target)
        if source == path:
            with target.open("r+b") as file:
                file.truncate(target.stat().st_size * 9 // 10)
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))

    monkeypatch.setattr(shutil, "copyfile", copy_too_late)

    assert merge(folder) == {path: "it was being written: merge again for more"}


def test_of_no_recordings_at_all_comes_one_without_samples(folder: JobFolder) -> None:
    merge(folder)
    with Source([folder.merged]) as source:
        assert (source.streams, source.hosts) == ([], [])


def test_a_full_disk_leaves_the_merged_recording_of_before(folder: JobFolder) -> None:
    record(folder, "a")
    merge(folder)
    record(folder, "b", 3000)
    with files_of_at_most(40_000), pytest.raises(StorageError):
        merge(folder)
    assert merged(folder) == {"a": list(range(100))}
    assert not list(folder.path.glob(".merge-*"))
    merge(folder)
    assert len(merged(folder)["b"]) == 3000


def test_a_merge_that_was_killed_leaves_nothing_that_a_later_one_does_not_remove(folder: JobFolder) -> None:
    record(folder, "a")
    left = folder.path / ".merge-0123456789abcdef"
    left.mkdir()
    (left / "copy.fmr").write_text("half")
    os.utime(left, (0, 0))
    merge(folder)
    assert not left.exists()


def test_bytes_written_by_recording_and_merging_grow_no_faster_than_the_samples(tmp_path: Path) -> None:
    """perfmon rewrites everything at each checkpoint: 48 of them wrote 24 times what there was to keep."""

    def written(samples: int) -> int:
        folder = JobFolder(tmp_path, None, str(samples))
        folder.make()
        before = _written_bytes()
        record(folder, "a", samples)
        merge(folder)
        return _written_bytes() - before

    small, large = written(1_000), written(4_000)
    assert large < 4.5 * small


def _written_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar:")))
