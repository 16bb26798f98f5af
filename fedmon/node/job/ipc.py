"""The file by which a job's script stops the measuring: ``echo FINISHED > .ipc-JOBID``, as with perfmon."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

IN_PROGRESS, FINISHED = "INPROGRESS", "FINISHED"
_MOST_BYTES = 64
_MOST_TRIES = 5


class StopFile:
    """Says when to stop: FINISHED in it, nothing in it, or no file at all; whatever else is there is no reason to.

    ``begin`` puts INPROGRESS into it. What cannot be read or written is said once in the log, and never ends a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_made = False
        self._problem = ""

    def begin(self, is_meant: Callable[[float], bool] = lambda _changed: False) -> None:
        """Write INPROGRESS, unless the run was stopped already.

        A FINISHED that lies there belongs to an earlier run and is replaced, unless ``is_meant`` says that it is for
        this one, by the time at which it was written by the clock of the file server, in Unix seconds. One that comes
        while it is replaced is heard.
        """
        for _ in range(_MOST_TRIES):
            try:
                descriptor = self._open()
            except FileNotFoundError:
                if self._make():
                    return
                continue
            except OSError as error:
                self._say(f"cannot be read: {error.strerror}")
                return
            try:
                text, changed = _content(descriptor)
                is_ours = _is_stop(text) and is_meant(changed)
                if text != IN_PROGRESS and not is_ours:
                    self._write(IN_PROGRESS)
                    # Whoever had opened the file that was replaced wrote into that one.
                    text, written = _content(descriptor)
                    if self._is_made and written != changed and _is_stop(text):
                        self._write(FINISHED)
                    return
            finally:
                os.close(descriptor)
            self._is_made = True
            return

    def says_stop(self) -> str | None:
        """Return why to stop, None to go on."""
        if not self._is_made:
            return None
        try:
            descriptor = self._open()
            try:
                text, _ = _content(descriptor)
            finally:
                os.close(descriptor)
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

    def _open(self) -> int:
        """Open what lies there. Raises OSError, also for what is no file."""
        # A pipe of this name would hold up who opens it.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(0, "it is no file")
        return descriptor

    def _make(self) -> bool:
        """Make the file; False when somebody else just did."""
        return self._write(IN_PROGRESS, is_new=True)

    def _write(self, text: str, *, is_new: bool = False) -> bool:
        """Put a file with this text there, whole; False when there is one already and ``is_new`` asks for none."""
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            try:
                new.write_text(f"{text}\n")
                if is_new:
                    try:
                        os.link(new, self.path)
                    except FileExistsError:
                        return False
                    except OSError:  # this file system has no links
                        new.replace(self.path)
                else:
                    new.replace(self.path)
            finally:
                with contextlib.suppress(OSError):
                    new.unlink()
        except OSError as error:
            self._say(f"cannot be written: {error.strerror}")
            return True
        self._is_made = True
        return True

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("%s %s: it cannot stop the measuring as long as that is so", self.path, problem)
        self._problem = problem


def _content(descriptor: int) -> tuple[str, float]:
    """Return what a file holds, and when it was changed. Raises OSError."""
    text = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace").strip()
    return text, os.fstat(descriptor).st_mtime


def _is_stop(text: str) -> bool:
    return not text or text.upper() == FINISHED
