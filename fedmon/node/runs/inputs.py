"""Inputs of a job that lie in a repository: fetched into a file that has no name any more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.wire.runs import Parcel
from fedmon.node.runs.results import mapped

DEADLINE_S = 600.0
_NAME = ".inputs"


def fetched(parcel: Parcel, folder: Path, *, max_bytes: int, allowed_urls: Sequence[str]) -> int:
    """Return a descriptor, for reading, of what lies at the parcel's URL, checked; the caller closes it.

    Raises RepositoryError when it cannot be fetched or is not allowed to be, InvalidInputError when it is no parcel,
    StorageError when it cannot be kept.
    """
    from fedmon.common.http import download_to

    path = folder / _NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        written = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(written, "r+b") as file:
            read_only = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            path.unlink()
            try:
                download_to(
                    file,
                    parcel.url or "",
                    sha256=parcel.sha256,
                    size_bytes=parcel.size_bytes,
                    max_bytes=max_bytes,
                    deadline_s=DEADLINE_S,
                    allowed_urls=allowed_urls,
                )
                file.flush()
                _check(file.fileno(), parcel, max_bytes)
            except BaseException:
                os.close(read_only)
                raise
    except OSError as error:
        raise StorageError(f"inputs cannot be kept in {folder}: {error.strerror}") from error
    return read_only


def _check(descriptor: int, parcel: Parcel, max_bytes: int) -> None:
    from fedmon.plan.parcel_check import check

    try:
        check(parcel.format, mapped(descriptor), max_bytes)
    except FedmonError as problem:
        raise InvalidInputError(f"the inputs cannot be used: {problem}") from None
