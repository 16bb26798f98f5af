"""Passwords and tokens in files, as programs are given them."""

from __future__ import annotations

from pathlib import Path

PASSWORD = "correct horse battery"


def secret_file(file: Path, secret: str = PASSWORD) -> Path:
    """Write a secret into a file that only we can read; returns the file."""
    file.touch(mode=0o600)
    file.write_text(secret + "\n")
    return file
