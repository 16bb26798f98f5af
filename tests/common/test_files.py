"""A file that is written whole: what lay there is replaced or stays, and nothing else is left."""

from __future__ import annotations

import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.common.files import LockFile, TargetExistsError, target_of, write_whole


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_takes_the_place_of_another_with_the_rights_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text("before")
    path.chmod(0o644)

    write_whole(path, b"after", mode=0o600)

    assert (path.read_text(), mode_of(path)) == ("after", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("of somebody else")
    (tmp_path / "link").symlink_to("other")

    write_whole(tmp_path / "link", b"ours")

    assert (tmp_path / "other").read_text() == "of somebody else"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "ours"


@pytest.mark.parametrize("name", ["folder", "file/below", "n" * 256])
def test_what_cannot_be_written_is_said_by_name_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("as it was")

    with pytest.raises(StorageError, match=f"cannot write .*{name}: "):
        write_whole(tmp_path / name, b"content")

    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "as it was"


def test_a_target_in_the_home_of_an_unknown_user_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="cannot write ~no-such-user/file: "):
        target_of(Path("~no-such-user/file"))


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "one"
    write_whole(path, b"first", durable=True, only_new=True)

    with pytest.raises(TargetExistsError):
        write_whole(path, b"second", durable=True, only_new=True)

    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("only_new", [False, True])
def test_a_file_may_have_the_longest_name_in_letters_of_several_bytes(tmp_path: Path, *, only_new: bool) -> None:
    path = tmp_path / ("n" + "\N{CYRILLIC SMALL LETTER ZHE}" * 127)

    write_whole(path, b"content", only_new=only_new)

    assert path.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("only_new", [False, True])
def test_a_file_is_written_whole_where_the_system_has_no_nameless_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, only_new: bool
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")

    write_whole(tmp_path / "one", b"content", mode=0o600, only_new=only_new)

    assert ((tmp_path / "one").read_bytes(), mode_of(tmp_path / "one")) == (b"content", 0o600)
    assert list(tmp_path.iterdir()) == [tmp_path / "one"]


def test_a_lock_has_one_holder_whose_text_others_read(tmp_path: Path) -> None:
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert second.holder() is None

    assert first.take("12 daemon")
    assert not second.take("13 other", timeout_s=0.01)
    assert second.holder() == "12 daemon"
    first.release()

    assert second.holder() is None
    assert second.take("13 other")
    assert first.holder() == "13 other"
    second.release()


def test_one_takes_a_lock_though_another_process_looks_who_holds_it(tmp_path: Path) -> None:
    locks = [LockFile(tmp_path / "lock") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        with (tmp_path / "lock").open("w") as looking:
            fcntl.flock(looking, fcntl.LOCK_SH)
            takers = [pool.submit(lock.take) for lock in locks]
            wait(takers, 0.2)
        taken = sorted(taker.result(60) for taker in takers)

    assert taken == [False, False, True]
    for lock in locks:
        lock.release()


def test_a_lock_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / "lock").symlink_to("other")

    with pytest.raises(StorageError, match="lock"):
        LockFile(tmp_path / "lock").take()
