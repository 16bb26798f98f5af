"""Small files of /sys that hold one number and may go away with their device."""

from __future__ import annotations

import re
from pathlib import Path

from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.files import LONGEST_TEXT, KernelFile, read_bytes

_NUMBER = re.compile(rb"-?[0-9]{1,30}")
_BYTES = 64


class DeviceFile(KernelFile):
    """One number of a device, kept open."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, size_bytes=_BYTES)

    def number(self) -> int:
        """Return the number. Raises CollectorUnavailableError when there is none."""
        text = self.head().strip()
        if not _NUMBER.fullmatch(text):
            shown = text[:40].decode(errors="replace")
            raise CollectorUnavailableError(Why.FAILED, f"{self.path}: {shown!r} is not a number")
        return int(text)


def text_of(path: Path) -> str | None:
    """Return the first line of a small file, None where it cannot be read or is empty."""
    try:
        text = read_bytes(path)
    except CollectorUnavailableError:
        return None
    return text[:LONGEST_TEXT].decode(errors="replace").partition("\n")[0].strip() or None


def number_of(path: Path) -> int | None:
    """Return the number above 0 that a file holds, None where there is none."""
    try:
        return value if (value := DeviceFile(path).number()) > 0 else None
    except CollectorUnavailableError:
        return None
