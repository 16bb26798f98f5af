"""Files under their digest: counted, renewed, expired, and never half there."""

from __future__ import annotations

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmon.broker.file_store import FileStore, StoredFile, StoreLimits, Upload, UploadRefusedError
from fedmon.common.errors import FolderInUseError, StorageError
from tests.support.full_disk import limited

DAY_S = 86_400.0


def store_in(folder: Path, **limits: float) -> FileStore:
    given = dict.fromkeys(("max_file_bytes", "max_total_bytes", "max_party_bytes"), 2**24) | {"keep_s": DAY_S} | limits
    return FileStore(folder, StoreLimits(**given))  # type: ignore[arg-type]  # whole numbers where they belong


def stored(store: FileStore, content: bytes, party: str | None = None) -> StoredFile:
    with Upload(store, party) as upload:
        upload.write(content)
        return upload.finish()


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_limits_hold_during_the_upload(tmp_path: Path) -> None:
    store = store_in(tmp_path, max_file_bytes=10, max_total_bytes=15, max_files=2)
    stored(store, b"x" * 10)

    with Upload(store) as upload:
        upload.write(b"y" * 4)
        with pytest.raises(UploadRefusedError, match="a file may have 10 bytes"):
            upload.write(b"y" * 7)
        with pytest.raises(UploadRefusedError, match="the repository is full"):
            upload.write(b"y" * 2)
        with pytest.raises(UploadRefusedError, match="the repository is full"):
            Upload(store).__enter__()
    (tmp_path / "incoming").rmdir()
    with pytest.raises(StorageError, match="the repository cannot write"):
        Upload(store).__enter__()

    assert (store.usage(), len(files_in(tmp_path))) == ((1, 10), 1)


def test_a_file_that_the_disk_may_lose_is_refused_and_counted_as_long_as_it_is_there(tmp_path: Path) -> None:
    store = store_in(tmp_path)

    with Upload(store) as upload:
        upload.write(b"plan")
        with (
            limited(resource.RLIMIT_NOFILE, 0),  # so that the folder cannot be opened
            pytest.raises(StorageError, match="cannot write: Too many open files"),
        ):
            upload.finish()

    assert (store.usage(), len(files_in(tmp_path))) == ((1, 4), 1)


def test_room_for_a_form_is_counted_until_it_is_read(tmp_path: Path) -> None:
    store = store_in(tmp_path, max_party_bytes=10)

    with store.room("alice", 100) as take:
        take(8)
        during = store.usage()
        with pytest.raises(UploadRefusedError, match="the quota of alice is full"):
            take(3)

    assert (during, store.usage()) == ((0, 8), (0, 0))


def test_what_has_expired_is_not_found_and_then_deleted_unless_it_is_uploaded_again(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_s=DAY_S)
    old, again = stored(store, b"old"), stored(store, b"again")
    for file in (old, again):
        _age(store, file, 1.01 * DAY_S)
    renewed = stored(store, b"again")

    assert (store.find(old.sha256), store.find(again.sha256)) == (None, renewed)
    store.sweep()
    assert store.usage() == (1, 5)
    assert not (store.files / old.sha256).exists()


def test_a_new_start_counts_what_is_there_and_deletes_what_was_half_in(tmp_path: Path) -> None:
    first = store_in(tmp_path, keep_s=DAY_S)
    kept, old = stored(first, b"kept"), stored(first, b"old")
    _age(first, old, 2 * DAY_S)
    (tmp_path / "incoming" / "half").write_bytes(b"half")
    (tmp_path / "sha256" / "not a digest").write_bytes(b"stranger")
    (tmp_path / "parties" / "alice").mkdir()
    (tmp_path / "parties" / "alice" / old.sha256.swapcase()).touch()

    del first
    second = store_in(tmp_path, keep_s=DAY_S)

    assert second.find(kept.sha256) == kept
    assert second.usage() == (1, 4)
    assert files_in(tmp_path) == [kept.sha256, "not a digest"]


def test_a_file_is_charged_to_each_party_that_stored_it_until_its_time_is_over(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_s=DAY_S, max_party_bytes=10)
    for party in ("alice", "alice", "bob"):
        file = stored(store, b"plan", party)
    old = time.time() - 1.01 * DAY_S
    os.utime(tmp_path / "parties" / "alice" / file.sha256, (old, old))

    store.sweep()
    stored(store, b"x" * 10, "alice")
    del store
    again = store_in(tmp_path, keep_s=DAY_S, max_party_bytes=10)
    with pytest.raises(UploadRefusedError, match="the quota of alice is full"):
        stored(again, b"y", "alice")
    with pytest.raises(UploadRefusedError, match="the quota of bob is full"):
        stored(again, b"y" * 7, "bob")
    _age(again, file, 1.01 * DAY_S)
    again.sweep()
    stored(again, b"y" * 10, "bob")

    assert again.usage() == (2, 20)


def test_a_folder_belongs_to_one_repository_at_a_time(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    kept = stored(store, b"plan")

    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/lock/below: Not a directory"):
        store_in(tmp_path / "lock" / "below")
    with Upload(store) as upload:
        upload.write(b"half a plan")
        with pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()}"):
            store_in(tmp_path)
        whole = upload.finish()

    assert (store.find(kept.sha256), store.find(whole.sha256)) == (kept, whole)


def test_many_uploads_at_once_are_counted_exactly(tmp_path: Path) -> None:
    store = store_in(tmp_path)

    def upload_some(number: int) -> None:
        for size in range(20):
            stored(store, bytes([number % 2]) * (size + 1))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(upload_some, range(6)))

    assert store.usage() == (40, 2 * sum(range(1, 21)))


def _age(store: FileStore, file: StoredFile, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(store.files / file.sha256, (moment, moment))
