"""The mark that all processes of a job bear, by which they are known when nobody watches over them any more.

It is a limit that means nothing to the kernel, is inherited by every process, and can be raised by none: RLIMIT_LOCKS,
as high as a digest of the job's folder. A plan cannot lower it either, as the filters of system calls deny that. An
environment could be overwritten, and the same job id may run on several nodes of one machine.
Source: Linux man-pages, getrlimit(2), "In Linux 2.4.25 and later" of RLIMIT_LOCKS.
"""

from __future__ import annotations

import hashlib
import resource

RLIMIT_LOCKS = 10
"""Source: Linux include/uapi/asm-generic/resource.h; Python has no name for it."""
LIMIT = b"Max file locks"
"""What it is called in /proc/PID/limits."""


def mark_of(folder: str) -> int:
    """Return the mark of the job that has a folder; a positive number of 62 bits."""
    return int.from_bytes(hashlib.sha256(folder.encode(errors="surrogateescape")).digest()[:8], "big") >> 2 | 1


def bear(mark: int) -> None:
    """Mark this process and all that it will start, unless it has a lower limit itself."""
    _, hard = resource.getrlimit(RLIMIT_LOCKS)
    if hard == resource.RLIM_INFINITY or hard >= mark:
        resource.setrlimit(RLIMIT_LOCKS, (mark, mark))
