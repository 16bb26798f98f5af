"""Remove a folder that somebody hostile filled: however deep it is, and whatever modes its folders have."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_OPEN = 0o700


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, following no link; nobody may be writing into it any more.

    What lies deep is first moved up, as a path or a recursion of any depth could not be. Raises OSError; a folder that
    is not there is no error.
    """
    number = 0
    with contextlib.suppress(FileNotFoundError):
        while inner := _folders_in(folder):
            for each in inner:
                for deeper in _folders_in(each):
                    number += 1
                    deeper.rename(_unused(folder, number))
                each.rmdir()
        folder.rmdir()


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, and remove everything else in it."""
    folder.chmod(_OPEN)
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                if stat.S_IMODE(path.lstat().st_mode) & _OPEN != _OPEN:
                    path.chmod(_OPEN)  # a folder that may not be written to cannot be moved
                found.append(path)
            else:
                Path(entry.path).unlink()
    return found


def _unused(folder: Path, number: int) -> Path:
    """Return a name in a folder that is not taken."""
    path = folder / f".{number}"
    while os.path.lexists(path):
        path = path.with_name(f"{path.name}.")
    return path
