"""The processes and cgroups of a machine at one moment, and the daemons and launchers among them."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.job.cgroup import Hierarchies, is_cgroup, members_of, paths_of
from fedmon.node.collectors.job.process import Birth, all_pids, births_of, descended

DAEMONS = frozenset({"slurmd", "slurmstepd", "pbs_mom", "pbs_demux", "oardodo", "oarsh_shell", "oarexec"})
"""Programs of a scheduler for each job or step on each host."""
LAUNCHERS = frozenset(
    {
        *("srun", "pbsdsh", "pbs_tmrsh", "pbs_attach", "oarsh", "aprun", "jsrun", "taktuk"),
        *("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "orterun", "prterun", "orted", "prted"),
        *("mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy"),
    }
)
"""Programs that start the ranks of a parallel program, and wait for them."""
_OVERHEAD = frozenset(name[:15] for name in DAEMONS | LAUNCHERS)
_MAX_DEPTH = 128


class Processes:
    """The programs at one moment, without kernel threads and zombies; none if they cannot be listed.

    An unreadable file of a process is empty.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        everything: list[Birth] = []
        with contextlib.suppress(OSError):  # such as ENOMEM; searches look again
            everything = births_of(all_pids(proc), proc)
        self.births = {birth.pid: birth for birth in everything if not (birth.is_kernel_thread or birth.is_zombie)}
        self._environments: dict[int, frozenset[bytes]] = {}

    def __contains__(self, pid: object) -> bool:
        return pid in self.births

    def environment(self, pid: int) -> frozenset[bytes]:
        """Return the ``NAME=value`` with which a process was started, for its user and root only."""
        if pid not in self._environments:
            self._environments[pid] = frozenset(_read(self._proc, pid, "environ").split(b"\0"))
        return self._environments[pid]

    def command(self, pid: int) -> list[str]:
        """Return the words of a command line; daemons put a title there."""
        return _read(self._proc, pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")

    def name(self, pid: int) -> str:
        """Return the name of a program."""
        return name_of(pid, self._proc)

    def cgroups(self, pid: int) -> set[str]:
        """Return the paths of a process's cgroups."""
        return set(paths_of(self._proc, str(pid)).values()) - {"/"}

    def user(self, pid: int) -> int | None:
        """Return a process's user."""
        try:
            return (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None

    def ancestors(self, pid: int) -> Iterator[int]:
        """Yield a process's parent, grandparent and so on, without process 1."""
        for _ in range(_MAX_DEPTH):
            birth = self.births.get(pid)
            if birth is None or birth.parent <= 1 or birth.parent not in self.births:
                return
            pid = birth.parent
            yield pid

    def trees(self, roots: Iterable[int]) -> set[int]:
        """Return processes with all their descendants."""
        first = set(roots)
        return first | {birth.pid for birth in descended(first, self.births.values())}

    def still_there(self, pids: set[int]) -> list[Birth]:
        """Return the processes that still run, oldest first."""
        now = births_of(self.births.keys() & pids, self._proc)
        same = (birth for birth in now if birth.start == self.births[birth.pid].start and not birth.is_zombie)
        return sorted(same, key=lambda birth: (birth.start, birth.pid))

    def is_overhead(self, pid: int) -> bool:
        """Tell whether a process of a job is its scheduler's or its launcher's.

        OAR's oarexec is a perl program with the job's id and the word OAREXEC; it starts another perl as the job's
        user, which starts the job's command. Source: OAR 2.5.9, bipbip and oarexec.
        """
        if self.name(pid) in _OVERHEAD:
            return True
        if not _is_perl(command := self.command(pid)):
            return False
        if command[-1] == "OAREXEC":
            return True
        parent = self.births[pid].parent if pid in self else 0
        above = self.command(parent)
        is_started_by_oar = self.name(parent) in {"oardodo", "oarexec"} or (_is_perl(above) and above[-1] == "OAREXEC")
        return len(command) > 1 and command[1] == "-e" and is_started_by_oar


def name_of(pid: int, proc: Path = THIS_MACHINE.proc) -> str:
    """Return the name of a program, which the kernel cuts at 15 letters; empty if it cannot be read."""
    return _read(proc, pid, "comm").decode(errors="replace").rstrip("\n")


def is_overhead_now(pid: int) -> bool:
    """Tell by its name whether a process of this machine is a scheduler's or a launcher's at this moment."""
    return name_of(pid) in _OVERHEAD


def _read(proc: Path, pid: int, name: str) -> bytes:
    try:
        return (proc / str(pid) / name).read_bytes()
    except OSError:
        return b""


def _is_perl(command: list[str]) -> bool:
    return command[0].rpartition("/")[2].startswith("perl")


# --- cgroups of jobs -------------------------------------------------------------------------------------------------


def matching(hierarchies: Hierarchies, patterns: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the paths of cgroups that match a pattern, in any hierarchy, in the order of the patterns.

    In a pattern ``{id}`` and the like stand for ``names``, and ``*`` for any letters of one level.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        text = pattern.strip("/")
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", glob.escape(value))
        for base in dict.fromkeys(hierarchies.values()):
            # With pathlib a cgroup that goes meanwhile would be an error.
            found |= {f"/{path}": None for path in sorted(glob.iglob(text, root_dir=base)) if is_cgroup(base / path)}  # noqa: PTH207
    return list(found)


def own_paths(paths: Collection[str], is_last: Callable[[str], object]) -> list[str]:
    """Return the paths of a process's cgroups, cut after the first such level."""
    found: dict[str, None] = {}
    for path in paths:
        parts = PurePosixPath(path).parts
        index = next((at for at, part in enumerate(parts) if is_last(part)), None)
        if index is not None and ".." not in parts:
            found[str(PurePosixPath(*parts[: index + 1]))] = None
    return list(found)


def folders_of(hierarchies: Hierarchies, path: str) -> list[Path]:
    """Return the folders of a cgroup in all hierarchies."""
    folders = {base / path.lstrip("/") for base in hierarchies.values()}
    return [folder for folder in folders if is_cgroup(folder)]


def members(hierarchies: Hierarchies, path: str) -> set[int]:
    """Return the processes of a cgroup, in all hierarchies."""
    return set().union(*map(members_of, folders_of(hierarchies, path)))
