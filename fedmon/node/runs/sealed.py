"""Bytes in memory that nobody can change any more, handed to other processes as a descriptor."""

from __future__ import annotations

import fcntl
import os

from fedmon.common.errors import StorageError

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def sealed(name: str, content: bytes | memoryview) -> int:
    """Return a descriptor of these bytes, sealed, at their beginning; the caller closes it. Raises StorageError."""
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise StorageError(f"no memory for {name}: {error.strerror}") from error
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError as error:
        os.close(descriptor)
        raise StorageError(f"{len(memoryview(content))} bytes of {name} cannot be kept: {error.strerror}") from error
    return descriptor
