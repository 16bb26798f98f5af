"""The strongest level at which this machine can confine plans, found with real plans that look around."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

import fedmon
from fedmon.common.errors import FedmonError
from fedmon.common.files import write_whole
from fedmon.common.ids import new_id
from fedmon.common.log import without_paths
from fedmon.common.settings.values import RunsSettings
from fedmon.common.wire.messages import ErrorCode
from fedmon.common.wire.runs import JobState, Level
from fedmon.node.requests.dialect import DeclinedError
from fedmon.node.runs.folder import (
    FOLDER_MODE,
    LEVELS,
    Ending,
    Interpreter,
    JobFolder,
    JobOrder,
    Limits,
    is_weaker,
    remove_tree,
)
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.sandbox import bubblewrap, landlock
from fedmon.node.runs.sandbox.interpreter import look_at
from fedmon.node.workers import Workers

LOOK_AGAIN_S, _SELDOM_S = 60.0, 600.0
"""The pause after a look that failed, as on a full disk, and after one that did not find the strongest level."""
SELF_TEST = Path(bubblewrap.__file__).with_name("self_test.py")
LOST = Ending(state=JobState.LOST, reason="the keeper of the job ended before it had written an ending")
_PACKAGE = Path(fedmon.__file__).parent
_COMMON = ("__init__.py", "common/__init__.py", "common/errors.py", "common/training_plan.py")
_COMPILE_TIMEOUT_S = 60.0
_LIMITS = Limits(cpu_s=10, wall_s=20, memory_bytes=2**30, processes=16, output_bytes=65_536, tmp_bytes=2**20)

logger = logging.getLogger(__name__)


def lay_out(folder: Path, *, python: str | None = None) -> None:
    """Copy the files of fedmon that plans need to ``folder``, readable by all users.

    Equal files stay, and others are replaced whole: a running job may be reading them. They are compiled for
    ``python``, the Python of plans, if possible, which saves each job some milliseconds. Raises StorageError and
    OSError.
    """
    plan = [f"plan/{path.name}" for path in (_PACKAGE / "plan").glob("*.py")]
    wanted = {folder / "fedmon" / name: _PACKAGE / name for name in (*_COMMON, *plan)}
    for path, source in wanted.items():
        if not path.is_file() or path.read_bytes() != source.read_bytes():
            write_whole(path, source.read_bytes(), mode=0o644)
    for path in set((folder / "fedmon").rglob("*.py")).difference(wanted):
        path.unlink()
    if python is not None:
        command = [python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(folder)]
        # Without compiled files Python reads the sources each time.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                command, env={"LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=_COMPILE_TIMEOUT_S, check=False,
            )  # fmt: skip
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


class Trials:
    """Runs plans with an order that is thrown away, by the launcher and keeper of all jobs.

    A trial lies in ``folder`` and is removed at its end, or by the next trial if this process was killed. The files
    that plans run with lie in ``runtime``.
    """

    def __init__(self, launcher: Launcher, folder: Path, runtime: Path) -> None:
        self._launcher, self._folder, self._runtime = launcher, folder, runtime

    @contextlib.contextmanager
    def running(self, order: JobOrder, source: bytes, inputs: bytes | None = None) -> Iterator[JobFolder]:
        """Run the exact bytes of a plan; on exit its processes and files are gone.

        Raises StorageError, ConflictError, LauncherError and OSError.
        """
        # Not the same name again: the keeper of the trial before may still be removing its cgroup and files.
        job_id = new_id()
        folder = JobFolder(self._folder / job_id)
        order = msgspec.structs.replace(order, job_id=job_id, folder=str(folder.path), runtime=str(self._runtime))
        lay_out(self._runtime)
        self._launcher.launch(order, source, inputs)
        try:
            yield folder
        finally:
            self._clear()

    def strongest_level(
        self, interpreter: Interpreter, devices: Collection[str] = ()
    ) -> tuple[Level | None, dict[str, str]]:
        """Try the levels, strongest first; return the first that works, if any, and the problems of stronger ones.

        Takes tenths of a second for each level. See `running` for its errors.
        """
        reasons: dict[str, str] = {}
        missing = [each for each in devices if not Path(each).exists()]
        if missing:
            reasons["devices"] = f"{', '.join(missing)} not found on this machine"
        for level in LEVELS:
            problem = self.problem_with(level, interpreter, devices)
            if not problem:
                return level, reasons
            reasons[level] = problem
        return None, reasons

    def problem_with(self, level: Level, interpreter: Interpreter, devices: Collection[str] = ()) -> str:
        """Run a plan that tries to get out of a level; return the problem with that level here, if any.

        See `running` for its errors.
        """
        if level == "bubblewrap" and bubblewrap.program() is None:
            return "bwrap is not installed (Debian, Fedora and others have it as the package bubblewrap)"
        if level == "landlock" and landlock.abi() == 0:
            return "this kernel has no Landlock, or it is not switched on (lsm= on the kernel's command line)"
        secret = self._folder / "secret"
        order = JobOrder(
            name="self-test",
            interpreter=interpreter,
            limits=_LIMITS,
            level=level,
            arguments={"level": level, "secret": str(secret), "outside": os.getpid()},
            devices=list(devices),
        )
        self._clear()
        write_whole(secret, b"secret", folder_mode=FOLDER_MODE)
        with self.running(order, SELF_TEST.read_bytes()) as folder:
            folder.wait()
            ending = folder.ending() or LOST
            if ending.state is JobState.SUCCEEDED:
                return str(msgspec.json.decode(folder.result.read_bytes())["problem"])
        problem = f"; {ending.problem.type}: {ending.problem.message}" if ending.problem else ""
        return ending.reason + problem

    def _clear(self) -> None:
        """End and remove a trial, also that of a process that was killed."""
        for folder in map(JobFolder, self._folder.glob("*/")):
            if folder.stop(JobState.STOPPED, "interrupted"):
                folder.wait()
            folder.kill_leftovers()
        with contextlib.suppress(OSError):  # the next trial tries it again
            remove_tree(self._folder)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one look; ``level`` is None if no level works, ``reasons`` are the problems of stronger ones.

    ``problem`` says why the look failed; then there is no level.
    """

    level: Level | None = None
    reasons: Mapping[str, str] = {}
    interpreter: Interpreter | None = None
    problem: str = ""


class Confinement:
    """Has a worker look for the strongest level until it works, and again if that changes or is doubted.

    ``found`` is the last finding, None unless it holds for the present settings. Without ``is_heard`` there is no look.
    Belongs to the node's worker.
    """

    def __init__(
        self,
        settings: RunsSettings,
        folder: Path,
        launcher: Launcher,
        workers: Workers,
        *,
        is_heard: bool,
    ) -> None:
        self.runtime = folder / "runtime"
        self.found: Ground | None = None
        self._told: tuple[Level | None, str] | None = None
        self._settings, self._workers, self._is_heard = settings, workers, is_heard
        self._trials = Trials(launcher, folder / "trial", self.runtime)
        self._looked_at = self._due = 0.0

    def look_if_due(self) -> None:
        """Begin to look, if plans may run here and it is time for it; called about once a second."""
        settings, now = self._settings, time.monotonic()
        if self._is_heard and settings.enabled and now >= self._due:
            self._looked_at, self._due = now, math.inf
            self._workers.post("sandbox", lambda: self._look(settings), lambda found: self._take(found, settings))

    def follow(self, settings: RunsSettings) -> None:
        """Look again if settings changed that matter here, or if the last look did not find the strongest level."""
        is_changed = _looked_with(settings) != _looked_with(self._settings)
        self._settings = settings
        if is_changed or (self.found is not None and self.found.level != LEVELS[0]):
            self._due = 0.0
        if is_changed:
            self.found = None

    def doubt(self) -> None:
        """Look again, at most once a minute: a job could not be started, so the last finding may hold no longer."""
        if self.found is not None and time.monotonic() > self._looked_at + LOOK_AGAIN_S:
            self.found, self._due = None, 0.0

    def ground(self) -> tuple[Level, Interpreter] | None:
        """Return the level and the Python of plans, None while a look is under way. Raises DeclinedError."""
        found, minimum = self.found, self._settings.sandbox
        if found is None:
            return None
        why = without_paths("; ".join(filter(None, [*map(": ".join, found.reasons.items()), found.problem])))
        if found.level is None or found.interpreter is None or is_weaker(found.level, minimum):
            has = found.level or "none"
            raise DeclinedError(
                ErrorCode.NO_SANDBOX,
                f"this node can confine plans at level {has!r} and its owner asks for {minimum!r} at least "
                f"(sandbox in [runs]){f'; {why}' if why else ''}",
            )
        return found.level, found.interpreter

    def _look(self, settings: RunsSettings) -> Ground:
        try:
            python = look_at(settings.python)
            lay_out(self.runtime, python=python.executable)
            level, reasons = self._trials.strongest_level(python, settings.devices)
        except OSError as error:
            raise FedmonError(str(error)) from error
        return Ground(level=level, reasons=reasons, interpreter=python)

    def _take(self, found: Ground | FedmonError, settings: RunsSettings) -> None:
        if _looked_with(settings) != _looked_with(self._settings):
            return  # they changed during the look, and the next one is due
        self.found = found = Ground(problem=str(found)) if isinstance(found, FedmonError) else found
        told = found.level, without_paths(found.problem)  # the folder of each trial has another name
        if told != self._told:
            self._told = told
            if found.problem:
                logger.error("no plan can run on this node: %s", found.problem)
            logger.info("plans run at level %s, the least is %s", found.level or "none", settings.sandbox)
        if found.level != LEVELS[0]:
            self._due = min(self._due, time.monotonic() + (LOOK_AGAIN_S if found.problem else _SELDOM_S))


def _looked_with(settings: RunsSettings) -> tuple[object, ...]:
    return settings.enabled, settings.python, settings.devices
