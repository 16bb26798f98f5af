"""Plans tried on this machine with an order that is thrown away, by the launcher and keeper of any job."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.ids import new_id
from fedmon.common.wire.runs import JobState, Level
from fedmon.node.runs.folder import JobFolder
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.order import (
    LEVELS,
    Ending,
    Interpreter,
    JobOrder,
    Limits,
    Logged,
    Reported,
)
from fedmon.node.runs.sandbox import bubblewrap, landlock
from fedmon.node.runs.sandbox.kernel import sealed
from fedmon.plan import runtime

_LOOK_S = 0.5  # how soon what no poke told is seen
_PIECE_BYTES = 32_768
SELF_TEST = Path(bubblewrap.__file__).with_name("self_test.py")
_LIMITS = Limits(cpu_s=10, wall_s=20, memory_bytes=2**30, processes=16, output_bytes=65_536, tmp_bytes=2**20)
_LOST = Ending(state=JobState.LOST, reason="what watches over the job ended before it had written how the job ended")
LACKS: dict[Level, str] = {
    "landlock": (
        "Namespaces: the plan runs as the node's user, among the processes of this machine, and can tell which files "
        "exist, how large they are and when they changed, though not read them. Semaphores and shared memory: "
        "multiprocessing has Process and Pipe there, but no Lock, Queue or Pool. Changing modes, owners and times of "
        "files, also of its own, and hearing of their changes (inotify). A hard bound on files: the size of the folder "
        "is looked at again and again, and the job ended. Where the node runs as root, RLIMIT_NPROC does not hold; the "
        "cgroup's limit or the keeper's look does."
    ),
    "limits": (
        "Any confinement of files: the plan can read and write what the node's user can, its keys, all data and the "
        "memory of its processes among it. Only for a user and a machine that have nothing else, and plans that were "
        "read with care. What the level landlock lacks, and signals reach no process but the plan's first."
    ),
}
"""What a weaker level lacks, for owners."""


@contextlib.contextmanager
def launched(launcher: Launcher, order: JobOrder, source: bytes, inputs: bytes = b"") -> Iterator[JobFolder]:
    """Launch the exact bytes of a plan; what is left of it at the end of the block is ended and removed.

    Raises StorageError, ConflictError and LauncherError.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fedmon-plan-", ignore_cleanup_errors=True) as base,
        contextlib.ExitStack() as stack,
    ):
        folder, plans = JobFolder(Path(base, "job")), Path(base, "runtime")
        order = msgspec.structs.replace(order, job_id=new_id(), folder=str(folder.path), runtime=str(plans))
        runtime.lay_out(plans)
        given = [sealed("plan", source), *([] if order.inputs_format is None else [sealed("inputs", inputs)])]
        for descriptor in given:
            stack.callback(os.close, descriptor)
        launcher.start()
        launcher.launch(order, *given)
        try:
            yield folder
        finally:
            if folder.stop(JobState.STOPPED, "interrupted"):
                folder.wait()
            with contextlib.suppress(FedmonError):  # what is left is removed with the rest
                folder.remove()


def followed(
    folder: JobFolder,
    news: threading.Event,
    on_event: Callable[[Reported | Logged], None],
    on_print: Callable[[str], object] = sys.stderr.write,
) -> Ending:
    """Tell what happens until the job is over, and return how it ended; ``news`` is set by pokes."""
    offset = 0
    printed = {folder.stdout: 0, folder.stderr: 0}
    while True:
        news.wait(_LOOK_S)
        news.clear()
        # Asked before the rest is read: what is written before the end is then seen before it.
        is_over = not folder.is_alive()
        found = folder.events(offset)
        offset = found.next_offset
        for event in found.events:
            if isinstance(event, Reported | Logged):
                on_event(event)
        for read, at in printed.items():
            place = at
            while (piece := read(place, _PIECE_BYTES)).next_offset > place:
                on_print((f"[{piece.skipped_bytes} bytes are not kept]\n" if piece.skipped_bytes else "") + piece.text)
                place = piece.next_offset
            printed[read] = place
        if is_over:
            return folder.ending() or _LOST


def strongest_level(
    launcher: Launcher, interpreter: Interpreter, devices: Collection[str] = ()
) -> tuple[Level | None, dict[str, str]]:
    """Try the levels on this machine, strongest first; return the first that works, None where none does.

    The reasons say by level why a stronger one does not work, and of a weaker one that was found what it lacks.
    Takes tenths of a second for each level.
    """
    reasons: dict[str, str] = {}
    missing = [each for each in devices if not Path(each).exists()]
    if missing:
        reasons["devices"] = f"there is no {', '.join(missing)} on this machine"
    for level in LEVELS:
        problem = problem_with(launcher, level, interpreter, devices)
        if not problem:
            if level in LACKS:
                reasons[level] = f"used; it lacks: {LACKS[level]}"
            return level, reasons
        reasons[level] = problem
    return None, reasons


def problem_with(launcher: Launcher, level: Level, interpreter: Interpreter, devices: Collection[str] = ()) -> str:
    """Run a plan that looks what it can do at a level; return what is wrong with it here, empty where nothing is."""
    if level == "bubblewrap" and bubblewrap.program() is None:
        return "bwrap is not installed (Debian, Fedora and others have it as the package bubblewrap)"
    if level == "landlock" and landlock.abi() == 0:
        return "this kernel has no Landlock, or it is not switched on (lsm= on the kernel's command line)"
    with tempfile.NamedTemporaryFile("w", prefix="fedmon-secret-") as secret:
        secret.write("secret")
        secret.flush()
        order = JobOrder(
            name="self-test",
            interpreter=interpreter,
            limits=_LIMITS,
            level=level,
            minimum=level,
            arguments={"level": level, "secret": secret.name, "outside": os.getpid()},
            devices=list(devices),
        )
        try:
            with launched(launcher, order, SELF_TEST.read_bytes()) as folder:
                folder.wait()
                ending = folder.ending() or _LOST
                if ending.state is JobState.SUCCEEDED:
                    return str(msgspec.json.decode(folder.result.read_bytes())["problem"])
        except (FedmonError, OSError) as error:
            return f"it could not be tried: {error}"
    problem = f"; {ending.problem.type}: {ending.problem.message}" if ending.problem else ""
    return ending.reason + problem
