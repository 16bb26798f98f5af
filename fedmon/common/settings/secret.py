"""Secrets are read from files that nobody else can read, never from arguments, variables or URLs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedmon.common.errors import SettingsError

_MAX_BYTES = 16_384
_OTHERS = 0o077


def read_secret(path: Path, *, what: str) -> str:
    """Return the text of a secret file without the line end.

    Raises SettingsError when it is missing, open to other users, empty, over 16 KiB or not UTF-8; the message never
    holds the secret.
    """
    try:
        with path.open("rb") as file:
            # The mode is taken from the open file, so that what is checked is what is read.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & _OTHERS:
                raise SettingsError(f"{what} {path} is open to other users (mode {mode:04o}): chmod 600 {path}")
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"{what} {path} is longer than {_MAX_BYTES} bytes; is it the right file?")
    try:
        secret = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SettingsError(f"{what} {path} is not UTF-8 text") from None
    if not secret:
        raise SettingsError(f"{what} {path} is empty; write the secret into it")
    if any(character in secret for character in "\r\n\0"):
        raise SettingsError(f"{what} {path} holds more than one line")
    return secret
