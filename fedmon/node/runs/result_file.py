"""The bytes of a result on their way from a running plan into the job's folder."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from pathlib import Path
from typing import Literal

from fedmon.common.errors import FedmonError
from fedmon.plan.parcels import check

_FILE_MODE = 0o600


class ResultFile:
    """Takes the pieces of one result; made at the first of them. ``problem`` tells why the disk did not take it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self.problem = ""

    @property
    def sha256(self) -> str:
        """The digest of what came so far."""
        return self._digest.hexdigest()

    def write(self, piece: memoryview) -> None:
        """Take the next piece."""
        self.size_bytes += len(piece)
        if self.problem:
            return
        self._digest.update(piece)
        try:
            if self._fd < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, _FILE_MODE)
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}"
            self.discard()

    def check(self, result_format: Literal["json", "npz"], max_bytes: int) -> str:
        """Return what is wrong with it as a parcel, nothing when it is one."""
        with mmap.mmap(self._fd, self.size_bytes, access=mmap.ACCESS_READ) as whole, memoryview(whole) as view:
            try:
                check(result_format, view, max_bytes)
            except FedmonError as error:
                return str(error)
            except (RecursionError, MemoryError) as error:
                return f"it is too complicated to be checked ({type(error).__name__})"
        return ""

    def keep(self) -> None:
        """Have the disk hold it before anybody is told that it is there."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}"

    def discard(self) -> None:
        """Remove it: what does not count is not kept."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._path.unlink()
