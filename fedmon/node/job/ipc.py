"""The file by which a job's script stops the measuring: ``echo FINISHED > .ipc-JOBID``, as with perfmon."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

IN_PROGRESS, FINISHED = "INPROGRESS", "FINISHED"
_MOST_BYTES = 64


class StopFile:
    """Says when to stop: FINISHED in it, nothing in it, or no file at all; whatever else is there is no reason to.

    ``begin`` puts INPROGRESS into it. What cannot be read or written is said once in the log, and never ends a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_made = False
        self._problem = ""

    def begin(self, *, began: float, is_late: bool) -> None:
        """Write INPROGRESS, unless the run was stopped already.

        A FINISHED from before belongs to an earlier run and is replaced, but not one that was written since ``began``,
        when this process began by the clock of the file server, nor where other hosts are measured already and this
        one comes late (``is_late``).
        """
        try:
            text, changed = self._read()
        except FileNotFoundError:
            text, changed = None, 0.0
        except OSError as error:
            self._say(f"cannot be read: {error.strerror}")
            return
        if text == IN_PROGRESS or (text is not None and _is_stop(text) and (is_late or changed >= began)):
            self._is_made = True
            return
        self._write()

    def says_stop(self) -> str | None:
        """Return why to stop, None to go on."""
        if not self._is_made:
            return None
        try:
            text, _ = self._read()
        except FileNotFoundError:
            return "it was removed"
        except OSError as error:
            self._say(f"cannot be read: {error.strerror}")
            return None
        if _is_stop(text):
            return f"it says {FINISHED}" if text else "it is empty"
        if text != IN_PROGRESS:
            self._say(f"holds neither {IN_PROGRESS} nor {FINISHED}")
        return None

    def _read(self) -> tuple[str, float]:
        """Return what the file holds and when it was changed. Raises OSError, also for what is no file."""
        # A pipe of this name would hold up who opens it.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(0, "it is no file")
            return os.read(descriptor, _MOST_BYTES).decode(errors="replace").strip(), found.st_mtime
        finally:
            os.close(descriptor)

    def _write(self) -> None:
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            try:
                new.write_text(f"{IN_PROGRESS}\n")
                new.replace(self.path)
            except OSError:
                with contextlib.suppress(OSError):
                    new.unlink()
                raise
        except OSError as error:
            self._say(f"cannot be written: {error.strerror}")
            return
        self._is_made = True

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("%s %s: it cannot stop the measuring as long as that is so", self.path, problem)
        self._problem = problem


def _is_stop(text: str) -> bool:
    return not text or text.upper() == FINISHED
