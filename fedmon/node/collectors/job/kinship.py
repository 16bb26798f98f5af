"""Which new processes belong to a job."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.process import Birth, Process

_ENVIRONMENT_BYTES = 262_144


class Kinship:
    """Knows a job's children, and its orphans: processes whose parents ended before anybody looked.

    Of the job is a process

    - whose parent is of the job, or
    - whom a process of the job forked, or one that such a process forked (see ForkEvents), or
    - whose session was begun by a process of the job: a session is entered by being born into it alone, or
    - whose process group is led by a process of the job, unless its parent is the parent of the job's roots, as that of
      the other programs of a shell's pipeline is, or
    - whose environment holds the job's ``marker``, such as ``FEDMON_JOB_ID=7``; only looked for where a root has it.

    An orphan with none of these signs cannot be told from anybody's process.
    """

    def __init__(self, roots: Iterable[Process], *, marker: bytes) -> None:
        roots = list(roots)
        self._outside = {root.parent for root in roots}
        self._marker = marker
        self._is_marked = any(has_marker(root.folder, marker) for root in roots)
        self._sessions: set[int] = set()
        self._groups: set[int] = set()

    def owns(self, birth: Birth, folder: bytes, members: Container[int]) -> bool:
        """Tell whether a new process is of the job."""
        # Who leads a session or group began it, and may have the number of one that is no more.
        in_session = birth.session in self._sessions and birth.session != birth.pid
        in_group = birth.group in self._groups and birth.group != birth.pid
        return (
            birth.parent in members
            or any(ancestor in members for ancestor in birth.ancestors)
            or in_session
            or (in_group and birth.parent not in self._outside)
            or (self._is_marked and has_marker(folder, self._marker))
        )

    def learn(self, members: Mapping[int, Process]) -> None:
        """Note which sessions and groups are the job's, for as long as one of its processes is in them."""
        living = members.values()
        sessions, groups = {each.session for each in living}, {each.group for each in living}
        self._sessions = {number for number in sessions if number in members or number in self._sessions}
        self._groups = {number for number in groups if number in members or number in self._groups}


def has_marker(folder: bytes, marker: bytes) -> bool:
    """Tell whether a process was started with a variable in its environment."""
    try:
        return marker in read_file(folder + b"/environ", _ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return False
