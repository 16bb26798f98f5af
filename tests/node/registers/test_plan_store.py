"""Plan files hold the bytes of their digest, whole or not at all, and lie nowhere but in their folder."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.node.registers.plans import PlanStore

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


def test_a_link_is_never_followed(store: PlanStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SOURCE)
    (store.folder / DIGEST).symlink_to(secret)

    with pytest.raises(StorageError, match="cannot read"):
        store.read(DIGEST)
    store.write(b"x = 2\n")
    store.write(SOURCE)

    assert not (store.folder / DIGEST).is_symlink()


def test_what_a_crash_left_and_files_of_other_plans_go_and_nothing_of_others(store: PlanStore) -> None:
    kept = store.write(b"keep")
    store.write(b"of a deleted plan")
    (store.folder / f".{kept}.{'0' * 16}").write_bytes(b"half")
    (store.folder / "README").write_bytes(b"not ours")

    store.keep_only({kept})

    assert _names(store) == sorted([kept, "README"])
