"""A researcher's id is made once and kept, so that nodes can name whom they obey."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.ids import checked_id, new_party_id

FILE_NAME = "researcher_id"


def kept_researcher_id(folder: Path) -> str:
    """Return the id kept in ``folder``, making folder and id when there is none yet; safe among processes.

    Raises StorageError when the folder or file cannot be made or read.
    """
    path = folder / FILE_NAME
    try:
        with contextlib.suppress(FileNotFoundError):
            return _checked(path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _publish(path, new_party_id("researcher"))
        return _checked(path)
    except OSError as error:
        raise StorageError(
            f"cannot keep the researcher id in {folder}: {error.strerror}; make the folder writable, or set "
            "researcher.id and researcher.folder"
        ) from None


def _checked(path: Path) -> str:
    try:
        return checked_id(path.read_text().strip(), what=f"the id in {path}")
    except UnicodeDecodeError:
        raise StorageError(f"the id in {path} is not readable: remove that file to be given a new id") from None


def _publish(path: Path, text: str) -> None:
    """Write the file whole or not at all; when two processes try at once, the first one's text stays."""
    descriptor, staged = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(staged, path)
    finally:
        Path(staged).unlink()
