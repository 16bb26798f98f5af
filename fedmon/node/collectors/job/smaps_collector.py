"""What memory a job's processes really have: alone, shared fairly, and swapped out."""

from __future__ import annotations

import time
from collections import Counter

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.watched import Watched

USS = "job_memory_uss_bytes"
PSS = "job_memory_pss_bytes"
SWAP = "job_memory_swap_bytes"
MAX_READING_S = 0.2
"""The kernel walks through every page for this; processes that are not read by then are left out, and counted."""

_FILE_BYTES = 4096


class SmapsCollector:
    """Reads ``smaps_rollup`` of each process. ``swap`` is false where the job's cgroup tells of it.

    Source: Linux Documentation/filesystems/proc.rst, section 3.
    """

    name = "job-smaps"
    lane = Lane.SLOW

    def __init__(self, watched: Watched, *, swap: bool = True) -> None:
        self._watched, self._swap = watched, swap

    def collect(self, _now: Instant) -> Reading:
        """Read every process; one that cannot be read is left out, and the reason says of how many."""
        if self._watched.is_over:
            return Reading({})
        living = self._watched.tree.living
        until = time.monotonic() + MAX_READING_S
        sums = {b"Pss:": 0, b"Private_Clean:": 0, b"Private_Dirty:": 0, b"Private_Hugetlb:": 0, b"SwapPss:": 0}
        unread: Counter[str] = Counter()
        for process in living:
            if time.monotonic() > until:
                unread[f"{Why.FAILED.value}: no time left after {MAX_READING_S:g} s"] += 1
                continue
            try:
                words = read_file(process.folder + b"/smaps_rollup", _FILE_BYTES).split()
                for index, word in enumerate(words):
                    if word in sums:
                        sums[word] += int(words[index + 1])
            except PermissionError:
                unread[Why.NO_PERMISSION.value] += 1
            except (OSError, ValueError, IndexError) as error:
                unread[(Why.NOT_FOUND if isinstance(error, FileNotFoundError) else Why.FAILED).value] += 1
        private = sums[b"Private_Clean:"] + sums[b"Private_Dirty:"] + sums[b"Private_Hugetlb:"]
        values: dict[str, float | None] = {USS: private * 1024, PSS: sums[b"Pss:"] * 1024}
        if self._swap:
            values[SWAP] = sums[b"SwapPss:"] * 1024
        if not unread:
            return Reading(values)
        count = unread.total()
        reason = (
            f"{max(unread, key=unread.__getitem__)}: smaps_rollup of {count} of {len(living)} processes cannot be read"
        )
        return Reading(values if count < len(living) else dict.fromkeys(values), dict.fromkeys(values, reason))

    def probe(self) -> dict[str, str | None]:
        """Say what can be read of the processes that there are now."""
        reading = self.collect(Instant(t=0, mono=0))
        return {key: reading.reasons.get(key) if value is None else None for key, value in reading.values.items()}
