"""Processes that somebody named by their numbers."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.collectors.base import Roots
from fedmon.node.collectors.job.births import is_thread
from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.process import birth_of
from fedmon.node.job.finders.found import Confidence, Found

_MAX_PID = 2**22


def explicit(pids: Sequence[int], roots: Roots, exclude: Collection[int]) -> Found:
    """Return the named processes as they are, without looking for others.

    Raises NotFoundError for one that is not there or has ended, and InvalidInputError for what is no program of a job.
    """
    starts: dict[int, int] = {}
    for pid in pids:
        if not 0 < pid <= _MAX_PID:
            raise InvalidInputError(f"{pid} is no process id: those are from 1 to {_MAX_PID}")
        if pid in exclude:
            raise InvalidInputError(f"process {pid} is this tool itself; name the processes of the job")
        folder = os.fsencode(roots.proc / str(pid))
        try:
            birth = birth_of(pid, read_file(folder + b"/stat", 1024))
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise NotFoundError(f"there is no process {pid} on this host") from None
        except (OSError, ValueError, IndexError) as error:
            raise InvalidInputError(f"process {pid} cannot be read: {error}") from None
        if birth.is_kernel_thread:
            raise InvalidInputError(f"process {pid} is a thread of the kernel; a job is a program")
        if birth.is_zombie:
            raise NotFoundError(f"process {pid} has ended already, it only waits to be taken note of")
        if is_thread(folder, pid):
            raise InvalidInputError(f"{pid} is a thread of another process: name that process (its Tgid)")
        starts[pid] = birth.start
    return Found(
        pids=tuple(sorted(starts, key=lambda pid: (starts[pid], pid))),
        starts=starts,
        method="pids",
        confidence=Confidence.CERTAIN,
        detail="named by their numbers",
    )
