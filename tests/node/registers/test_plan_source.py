"""Plan files hold the bytes of their digest, whole or not at all, and lie nowhere but in their folder."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.node.registers.plan_source import PlanStore

SOURCE = b"x = 1\n"
DIGEST = hashlib.sha256(SOURCE).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "plans")


def _names(store: PlanStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_bytes_are_kept_under_their_digest_for_their_owner_only(store: PlanStore) -> None:
    before = os.umask(0)
    try:
        digest = store.write(SOURCE)
    finally:
        os.umask(before)

    assert (digest, _names(store), store.read(digest)) == (DIGEST, [DIGEST], SOURCE)
    assert stat.S_IMODE((store.folder / DIGEST).stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_writing_the_same_bytes_again_mends_an_altered_file(store: PlanStore) -> None:
    store.write(SOURCE)
    (store.folder / DIGEST).write_bytes(b"something else")

    with pytest.raises(StorageError, match="no longer holds the bytes"):
        store.read(DIGEST)
    store.write(SOURCE)

    assert store.read(DIGEST) == SOURCE


def test_a_link_is_never_followed(store: PlanStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SOURCE)
    (store.folder / DIGEST).symlink_to(secret)

    with pytest.raises(StorageError, match="cannot read"):
        store.read(DIGEST)
    with pytest.raises(StorageError, match="cannot write"):
        store.write(SOURCE)

    assert secret.read_bytes() == SOURCE


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "/etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n", "0" * 64 + "/x"]
)
def test_what_is_no_digest_names_no_file(store: PlanStore, name: str) -> None:
    with pytest.raises(ValueError, match="not a SHA-256"):
        store.read(name)
    with pytest.raises(ValueError, match="not a SHA-256"):
        store.remove(name)


def test_what_a_crash_left_half_written_is_cleared_and_nothing_of_others(store: PlanStore) -> None:
    kept = store.write(b"keep")
    (store.folder / f".{kept}.{'0' * 16}").write_bytes(b"half")
    (store.folder / "README").write_bytes(b"not ours")

    store.clear_staged()

    assert _names(store) == sorted([kept, "README"])


def test_removing_is_done_once(store: PlanStore) -> None:
    store.write(SOURCE)

    store.remove(DIGEST)
    store.remove(DIGEST)

    assert _names(store) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "plans").write_bytes(b"")

    with pytest.raises(StorageError, match="cannot make the plan folder"):
        PlanStore(tmp_path / "plans")
