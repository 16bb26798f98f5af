"""The node folder is private and belongs to its user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmon.common.errors import NotFoundError, StorageError
from fedmon.node.folder import NodeFolder, user_name


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    made = NodeFolder.create(tmp_path / "node")
    made.write_private(made.settings_file, b"id = 'a'\n")
    return made


@pytest.mark.parametrize("name", ["", "node.toml", "state.sqlite", "audit.jsonl", "client_id"])
def test_what_other_users_can_read_is_refused_with_the_command_that_closes_it(folder: NodeFolder, name: str) -> None:
    path = folder.path / name
    path.touch()
    path.chmod(path.stat().st_mode | 0o040)

    with pytest.raises(StorageError, match=rf"open to other users .*chmod [67]00 {path}"):
        NodeFolder.open(folder.path)


def test_a_folder_without_a_node_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="fedmon node init"):
        NodeFolder.open(tmp_path)


def test_a_user_that_the_system_does_not_know_goes_by_number() -> None:
    assert user_name(2**31 - 9) == "#2147483639"


def test_a_link_in_place_of_the_settings_is_refused(tmp_path: Path, folder: NodeFolder) -> None:
    elsewhere = tmp_path / "elsewhere.toml"
    folder.settings_file.rename(elsewhere)
    folder.settings_file.symlink_to(elsewhere)

    with pytest.raises(StorageError, match="symbolic link"):
        NodeFolder.open(folder.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have a folder of another user")
def test_not_even_root_writes_files_into_the_folder_of_another_user(folder: NodeFolder) -> None:
    os.chown(folder.path, 65534, -1)

    with pytest.raises(StorageError, match=r"belongs to user \S+: run as that user"), folder.hold("plan approve"):
        pass
