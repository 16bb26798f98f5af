"""What a plan wrote is gone when its job is over, whatever shape it gave it."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.node.runs.sandbox.leftovers import remove_whole


def test_a_folder_nested_deeper_than_a_path_can_name_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    remove_whole(folder)
    assert [] == list(tmp_path.iterdir())


def test_links_are_removed_and_not_followed_and_closed_folders_opened(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder = tmp_path / "tmp"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "to-folder").symlink_to(kept)
    (folder / "to-nothing").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    (folder / "closed" / "inner").chmod(0)
    (folder / "closed").chmod(0)
    remove_whole(folder)
    assert [kept] == list(tmp_path.iterdir())
    assert (kept / "file").exists()


def test_a_folder_that_was_never_made_is_no_problem(tmp_path: Path) -> None:
    remove_whole(tmp_path / "none")
    assert [] == list(tmp_path.iterdir())
