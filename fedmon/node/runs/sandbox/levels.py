"""The levels of confinement: what each gives and lacks, and which is the strongest that works on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

import fedmon
from fedmon.common.wire.runs import Level
from fedmon.node.runs.order import LEVELS, Interpreter
from fedmon.node.runs.sandbox import bubblewrap, landlock
from fedmon.node.runs.sandbox.interpreter import look_at

_ROOT = str(Path(fedmon.__file__).resolve().parent.parent)
_TIMEOUT_S = 30.0
_WORKING: set[bytes] = set()
"""The levels that worked in this process, each with the devices and the interpreter that it was tried with."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a level gives, and what it lacks; as sentences for owners."""

    gives: tuple[str, ...]
    lacks: tuple[str, ...]


_IN_EVERY = (
    "An environment of five words, with nothing of the node's.",
    "No rights that the node does not have, no capabilities, no set-uid programs.",
    "Limits of CPU time, memory, processes, files and open files, and no core dumps.",
    "No system calls that read or steer other processes, mounts, modules, keys, clocks or the machine.",
    "No sockets of any family but local pairs.",
)

ABOUT: dict[Level, About] = {
    "bubblewrap": About(
        gives=(
            *_IN_EVERY,
            (
                "User, pid, mount, network, IPC, host name and cgroup namespaces of its own: what was not given to the "
                "plan (other files, processes, sockets, interfaces, the names of other users) does not exist there."
            ),
            "The dataset and the interpreter's own files, read-only by mount, and nothing else of the file system.",
            "A file system in memory for what it writes, with a size; it is gone with the job.",
            (
                "Where the node runs as root, an outside user who owns nothing; for data that he cannot read and whose "
                "file system shows no other owner, it is root without any right of root."
            ),
            "All of its processes end when its keeper ends.",
        ),
        lacks=(
            "A kernel of its own: a hole in the kernel's calls that are left is a hole in the sandbox.",
            "The plan can read where on this machine the data lies, in /proc/self/mountinfo.",
        ),
    ),
    "landlock": About(
        gives=(
            *_IN_EVERY,
            "The dataset, the interpreter's own files and a folder to write to can be opened, and no others.",
            (
                "By Landlock no TCP (Linux 6.7), no signals and no abstract sockets to others (Linux 6.12); where it"
                " is too old, seccomp denies signals to all but the plan's first process, and Process.terminate fails."
            ),
        ),
        lacks=(
            (
                "Namespaces: the plan runs as the node's user, among the processes of this machine, and can tell which "
                "files exist, how large they are and when they changed, though not read them."
            ),
            "Semaphores and shared memory: multiprocessing has Process and Pipe there, but no Lock, Queue or Pool.",
            "Changing modes, owners and times of files, also of its own, and hearing of their changes (inotify).",
            "A hard bound on files: the size of the folder is looked at again and again, and the job ended.",
            "Where the node runs as root, RLIMIT_NPROC does not hold; the cgroup's limit or the keeper's look does.",
        ),
    ),
    "limits": About(
        gives=_IN_EVERY,
        lacks=(
            (
                "Any confinement of files: the plan can read and write what the node's user can, its keys, all data "
                "and the memory of its processes among it. Only for a user and a machine that have nothing else, and "
                "plans that were read with care."
            ),
            "What the level landlock lacks, and signals reach no process but the plan's first.",
        ),
    ),
}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The strongest level that works here, null where none does.

    ``reasons`` say by level why a stronger one does not work, and of a weaker one that was found what it lacks.
    """

    level: Level | None
    reasons: dict[str, str]


def available(devices: Iterable[str] = (), *, python: Path | None = None) -> Found:
    """Try the levels on this machine, strongest first, and return what was found.

    Takes tenths of a second for each level that was not seen to work yet: failures may pass, so only successes are
    remembered. Raises InvalidInputError where ``python`` is none.
    """
    devices = tuple(devices)
    reasons: dict[str, str] = {}
    missing = [each for each in devices if not Path(each).exists()]
    if missing:
        reasons["devices"] = f"there is no {', '.join(missing)} on this machine"
    interpreter = look_at(python)
    for level in LEVELS:
        tried = msgspec.json.encode((level, devices, interpreter))
        problem = None if tried in _WORKING else _problem_with(level, devices, interpreter)
        if problem is None:
            _WORKING.add(tried)
            if level != LEVELS[0]:
                reasons[level] = f"used; it lacks: {' '.join(ABOUT[level].lacks)}"
            return Found(level=level, reasons=reasons)
        reasons[level] = problem
    return Found(level=None, reasons=reasons)


def _problem_with(level: Level, devices: tuple[str, ...], interpreter: Interpreter) -> str | None:
    """Return what is wrong with a level on this machine; null where nothing is."""
    if level == "bubblewrap" and bubblewrap.program() is None:
        return "bwrap is not installed (Debian, Fedora and others have it as the package bubblewrap)"
    if level == "landlock" and landlock.abi() == 0:
        return "this kernel has no Landlock, or it is not switched on (lsm= on the kernel's command line)"
    question = json.dumps({"level": level, "devices": devices, "interpreter": msgspec.to_builtins(interpreter)})
    try:
        # In a process of its own: to fork, a daemon with its threads is no safe place.
        done = subprocess.run(
            [sys.executable, "-s", "-S", "-B", "-P", "-X", "utf8", "-m", "fedmon.node.runs.sandbox.trying"],
            input=question.encode(),
            env={"PYTHONPATH": os.pathsep.join([_ROOT, *(each for each in sys.path if each)])},
            cwd="/",
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        return f"it could not be tried: {error.stderr.decode(errors='replace').strip()[-500:]}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"it could not be tried: {error}"
    return done.stdout.decode(errors="replace") or None
