"""What a dataset may not hold when a plan gets it: sockets and pipes lead out also where everything is read-only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedmon.common.errors import ConflictError, StorageError


def given_as_added(dataset: str) -> None:
    """Raise ConflictError when a path leads through a link: where to is decided by who made that, not by the owner."""
    if os.path.realpath(dataset) != dataset:
        raise ConflictError(f"the dataset at {dataset} is reached through a link now: its owner has to add it anew")


def no_way_out(dataset: str) -> None:
    """Look through a file or folder for what a process outside may listen at.

    Raises ConflictError that names it, and StorageError for a dataset that is not there or cannot be read.
    """
    try:
        mode = Path(dataset).stat().st_mode
        if not stat.S_ISDIR(mode):
            if not stat.S_ISREG(mode):
                _refuse(dataset)
            return
        folders = [dataset]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                        _refuse(entry.path)
    except OSError as error:
        raise StorageError(f"the dataset at {dataset} cannot be given to a plan: {error.strerror}") from error


def _refuse(path: str) -> None:
    raise ConflictError(
        f"the dataset holds {path}, which is neither file nor folder: a plan could reach another process through it; "
        "take it away"
    )
