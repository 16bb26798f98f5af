"""By what a process that somebody named is known to be a job's in fact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fedmon.node.job.finders.processes import Processes
from fedmon.node.job.finders.scheduler import SchedulerFinder


def with_sign(
    pids: Collection[int], processes: Processes, finder: SchedulerFinder, raw_id: str, excluded: Collection[int]
) -> tuple[set[int], str]:
    """Return who of the processes is the job's, and in words who is not: empty when all are.

    A sign is the job's variable in its environment or in that of one it descends from, the job's cgroup, or that it
    descends from the scheduler's daemon for this job. What a scheduler lists is not believed without: its answer may
    be old, of another host, or made up.
    """
    doubts: Counter[str] = Counter()
    believed = set()
    for pid in pids:
        if pid in excluded:
            continue
        if pid not in processes:
            doubts["not there"] += 1
        elif pid == 1 or not _has_sign(pid, processes, finder, raw_id):
            doubts["without any sign of the job"] += 1
        else:
            believed.add(pid)
    return believed, ", ".join(f"{count} {doubt}" for doubt, count in sorted(doubts.items()))


def of_one_user(pids: Collection[int], processes: Processes) -> tuple[set[int], str]:
    """Return those processes that have the user of the oldest, and in words how many have not.

    A job is one user's; variables are easily set by another.
    """
    oldest = min(pids, key=lambda pid: (processes.births[pid].start, pid))
    user = processes.user(oldest)
    mine = {pid for pid in pids if processes.user(pid) == user}
    others = len(pids) - len(mine)
    return mine, f"{others} of another user left out" if others else ""


def _has_sign(pid: int, processes: Processes, finder: SchedulerFinder, raw_id: str) -> bool:
    if finder.mark_in(processes.environment(pid)):
        return True
    level = finder.level(raw_id)
    if any(level.fullmatch(part) for path in processes.cgroups(pid) for part in path.split("/")):
        return True
    return any(
        finder.keeps(" ".join(processes.command(ancestor))) or finder.mark_in(processes.environment(ancestor))
        for ancestor in processes.ancestors(pid)
    )
