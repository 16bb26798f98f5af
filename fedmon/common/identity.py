"""What a party is called, made once and kept in its folder: a researcher's id, and the random bits of client ids."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.ids import checked_id, new_party_id

RESEARCHER_FILE = "researcher_id"
CLIENT_FILE = "client_id"
_BITS = re.compile(r"[0-9a-f]{32}\n?")


def kept_researcher_id(folder: Path) -> str:
    """Return the id kept in ``folder``, making folder and id when there is none yet; safe among processes.

    Raises StorageError when the folder or file cannot be made or read.
    """
    path = folder / RESEARCHER_FILE
    try:
        with contextlib.suppress(FileNotFoundError):
            return _checked(path)
        _publish(path, new_party_id("researcher"))
        return _checked(path)
    except OSError as error:
        raise StorageError(
            f"cannot keep the researcher id in {folder}: {error.strerror}; make the folder writable, or set "
            "researcher.id and researcher.folder"
        ) from None


def kept_client_id(folder: Path, party: str) -> str:
    """Return a party's client id at the broker: its name and 128 random bits, made once and kept in ``folder``.

    A broker ends a connection when another one gives the same client id, so nobody else may know it. Safe among
    processes. Raises StorageError when the file cannot be made or read.
    """
    path = folder / CLIENT_FILE
    try:
        with contextlib.suppress(FileNotFoundError):
            if not _BITS.fullmatch(path.read_text(errors="replace")):
                path.unlink()
        if not path.exists():
            _publish(path, secrets.token_hex(16))
        return f"{party}-{path.read_text().strip()}"
    except OSError as error:
        raise StorageError(f"cannot keep the client id in {path}: {error.strerror}; make the folder writable") from None


def _checked(path: Path) -> str:
    try:
        return checked_id(path.read_text().strip(), what=f"the id in {path}")
    except UnicodeDecodeError:
        raise StorageError(f"the id in {path} is not readable: remove that file to be given a new id") from None


def _publish(path: Path, text: str) -> None:
    """Write the file whole or not at all; when two processes try at once, the first one's text stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
