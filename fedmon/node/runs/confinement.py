"""How plans can be confined on this machine: the daemon finds out at its start, and when that may have changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError
from fedmon.common.log import without_paths
from fedmon.common.settings import RunsSettings
from fedmon.common.wire.messages import ErrorCode
from fedmon.common.wire.runs import Level
from fedmon.node.runs.admission import RunRefusedError
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.order import LEVELS, Interpreter, is_weaker
from fedmon.node.runs.sandbox.interpreter import look_at
from fedmon.node.runs.trial import strongest_level
from fedmon.plan import runtime

LOOK_TIMEOUT_S = 10.0
LOOK_AGAIN_S = (60.0, 600.0, 3600.0)
"""When it is looked again for the strongest level, after looks that did not find it; the last one is repeated."""

logger = logging.getLogger(__name__)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; ``level`` is null where no level at all is to be had, ``reasons`` say why not a stronger one.

    ``problem`` says why no plan can run here though the level would do; empty otherwise.
    """

    level: Level | None
    reasons: Mapping[str, str]
    interpreter: Interpreter | None
    runtime: Path
    problem: str = ""


class Confinement:
    """Looks until the strongest level works, and again when the settings change; `tick` is for one thread.

    It looks with the launcher of jobs, which it starts.
    """

    def __init__(self, settings: RunsSettings, runtime: Path, launcher: Launcher) -> None:
        self._settings, self._runtime, self._launcher = settings, runtime, launcher
        self.found: Ground | None = None
        """What was found, None as long as it is looked for."""
        self._there = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._again: Deadline | None = None
        self._looked_with: RunsSettings | None = None

    def start(self) -> None:
        """Begin to look, unless no plan runs here."""
        if self._settings.enabled:
            self._again, self._looked_with = None, self._settings
            self._thread = threading.Thread(target=self._look, name="fedmon-confinement")
            self._thread.start()

    def follow(self, settings: RunsSettings) -> None:
        """Look again if settings that matter here changed, or if the last look failed."""
        before, self._settings = self._looked_with, settings
        changed = before is None or (before.python, before.devices) != (settings.python, settings.devices)
        if settings.enabled and (changed or self._again is not None):
            self.join()
            self._failures = 0
            if changed:
                self._there.clear()
            self.start()

    def tick(self) -> None:
        """Look again when it is time after a look that failed; for about once a second."""
        if self._again is not None and self._again.passed():
            self.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the look."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def ground(self) -> tuple[Ground, Level, Interpreter]:
        """Return what a plan runs in, after a look that is not over yet. Raises RunRefusedError."""
        if not self._there.wait(LOOK_TIMEOUT_S) or self.found is None:
            raise RunRefusedError(ErrorCode.BUSY, "this node still finds out how it can confine plans: try again")
        found, minimum = self.found, self._settings.sandbox
        why = without_paths("; ".join(filter(None, [*map(": ".join, found.reasons.items()), found.problem])))
        if found.level is None or is_weaker(found.level, minimum):
            has = found.level or "none"
            raise RunRefusedError(
                ErrorCode.NO_SANDBOX,
                f"this node can confine plans at level {has!r} and its owner asks for {minimum!r} at least "
                f"(sandbox in [runs]){f'; {why}' if why else ''}",
            )
        if found.problem or found.interpreter is None:
            raise RunRefusedError(ErrorCode.FAILED, f"this node cannot run plans: {why}")
        return found, found.level, found.interpreter

    def _look(self) -> None:
        found = Ground(level=None, reasons={}, interpreter=None, runtime=self._runtime)
        try:
            python = look_at(self._settings.python)
            level, reasons = strongest_level(self._launcher, python, self._settings.devices)
            found = msgspec.structs.replace(found, level=level, reasons=reasons, interpreter=python)
            runtime.lay_out(self._runtime, python=python.executable)
        except (FedmonError, OSError) as error:
            found = msgspec.structs.replace(found, problem=str(error))
        if found != self.found:
            if found.problem:
                logger.error("no plan can run on this node: %s", found.problem)
            logger.info("plans run at level %s, the least is %s", found.level, self._settings.sandbox)
        self.found = found
        self._there.set()
        if found.level != LEVELS[0] or found.problem:
            self._again = Deadline(LOOK_AGAIN_S[min(self._failures, len(LOOK_AGAIN_S) - 1)])
            self._failures += 1
