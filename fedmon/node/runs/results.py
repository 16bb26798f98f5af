"""A job's result as it travels: checked, and inside the message where that holds it, else by a repository."""

from __future__ import annotations

import base64
import hashlib
import mmap
import os
from pathlib import Path
from typing import Literal

import msgspec

from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.runs import Parcel

INLINE_BYTES = MAX_PAYLOAD_BYTES - 12_000
"""What a result may take in a message; the rest is for what is told of its job."""
UPLOAD_S = 600.0
NO_REPOSITORY = (
    "the result has {size} bytes, which no message holds, and this node has no file repository: its owner would name "
    "one with `url` in [repository], or you return less"
)


class NoRepositoryError(FedmonError):
    """A result is too large for a message, and there is nowhere else to put it."""


def described(format_: Literal["json", "npz"], sha256: str, size_bytes: int) -> Parcel:
    """Return what is known of a result, without its bytes."""
    return Parcel(format=format_, sha256=sha256, size_bytes=size_bytes)


def check(path: Path, parcel: Parcel) -> None:
    """Raise InvalidInputError unless a file is the announced result, and one that cannot do harm; or StorageError."""
    from fedmon.plan.parcels import check as check_parcel

    try:
        with path.open("rb") as file:
            content = mapped(file.fileno())
            found = hashlib.sha256(content).hexdigest(), len(content)
            if found != (parcel.sha256, parcel.size_bytes):
                raise InvalidInputError("the result is not what the plan handed over")
            check_parcel(parcel.format, content, parcel.size_bytes)
    except OSError as error:
        raise StorageError(f"the result {path} cannot be read: {error.strerror}") from error


def inline(path: Path, parcel: Parcel) -> Parcel | None:
    """Return the result with its bytes, None when no message would hold it. Raises StorageError."""
    if parcel.size_bytes > INLINE_BYTES:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"the result {path} cannot be read: {error.strerror}") from error
    if parcel.format == "json":
        whole = msgspec.structs.replace(parcel, json=content.decode())
    else:
        whole = msgspec.structs.replace(parcel, base64=base64.b64encode(content).decode())
    return whole if len(msgspec.json.encode(whole)) <= INLINE_BYTES else None


def stored(path: Path, parcel: Parcel, repository: RepositorySettings) -> Parcel:
    """Return the result with the URL that it has in the repository from now on. Raises FedmonError."""
    from fedmon.common.http import upload_from

    if repository.url is None:
        raise NoRepositoryError(NO_REPOSITORY.format(size=parcel.size_bytes))
    try:
        with path.open("rb") as file:
            url = upload_from(file, repository, sha256=parcel.sha256, deadline_s=UPLOAD_S)
    except OSError as error:
        raise StorageError(f"the result {path} cannot be read: {error.strerror}") from error
    try:
        return msgspec.convert({**msgspec.structs.asdict(parcel), "url": url}, Parcel)
    except msgspec.ValidationError as error:
        raise FedmonError(f"the repository gave the result an address that cannot be used: {error}") from None


def mapped(descriptor: int) -> memoryview:
    """Return what an open file holds, without reading it; it stays mapped as long as this value lives."""
    # An empty file cannot be mapped.
    size = os.fstat(descriptor).st_size
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if size else b"")
