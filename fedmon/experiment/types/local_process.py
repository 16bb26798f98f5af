"""`local::Process`: a command on this machine."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.experiment.attributes import Types
from fedmon.experiment.resource import Experiment, clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.traces import Trace
from fedmon.experiment.types.errors import MissingPartError, ProcessFailedError
from fedmon.experiment.types.linked import LinkedResource
from fedmon.experiment.types.values import (
    CheckedAttribute,
    command,
    duration,
    environment,
    own,
    path_text,
)

logger = logging.getLogger(__name__)

Ended = Callable[[], None]


class Children:
    """Calls back when processes end, before they are reaped; one thread while there are any. Safe from any thread.

    Until a process is reaped its number, which is also that of its group, is no other's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None
        self._wake = (-1, -1)

    def watch(self, process: subprocess.Popen[bytes], ended: Ended) -> None:
        """Call back when a process ends."""
        if not hasattr(os, "pidfd_open"):
            threading.Thread(target=_wait, args=(process, ended), name="fedmon-experiment-child", daemon=True).start()
            return
        fd = os.pidfd_open(process.pid)
        with self._lock:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                self._wake = os.pipe()
                self._selector.register(self._wake[0], selectors.EVENT_READ)
                self._selector.register(fd, selectors.EVENT_READ, ended)
                threading.Thread(
                    target=self._run, args=(self._selector,), name="fedmon-experiment-children", daemon=True
                ).start()
            else:
                self._selector.register(fd, selectors.EVENT_READ, ended)
                os.write(self._wake[1], b"w")

    def _run(self, selector: selectors.BaseSelector) -> None:
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    os.read(key.fd, 4096)
                    continue
                with self._lock:
                    selector.unregister(key.fd)
                os.close(key.fd)
                try:
                    key.data()
                except Exception:
                    logger.exception("what follows the end of a process failed")
            with self._lock:
                if len(selector.get_map()) == 1:
                    selector.close()
                    os.close(self._wake[0])
                    os.close(self._wake[1])
                    self._selector = None
                    return


def _wait(process: subprocess.Popen[bytes], ended: Ended) -> None:
    """Wait where the system has no descriptors of processes."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    ended()


CHILDREN = Children()
"""Those of all experiments of this process."""


_TAIL_BYTES = 500


@clsinit_copy
class LocalProcess(LinkedResource):
    """STARTED while the command runs, STOPPED when it ended with code 0 or was told to, FAILED otherwise.

    It leads a process group of its own, all of which ends with it; no shell reads its words. A stop is SIGTERM to all
    of the group, and SIGKILL after ``grace``.
    """

    _rtype = "local::Process"
    _help = "A command on this machine: STOPPED when it ended with code 0, FAILED otherwise."
    _platform = "local"
    _ends_itself = True
    _passes = ()
    _required_attributes = ("command",)
    _measured_by = ()

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = self._is_releasing = False

    @classmethod
    def _register_attributes(cls) -> None:
        for attribute in (
            CheckedAttribute("command", "The program and its arguments.", command,
                             'a list of texts, such as ["ls", "-l"]'),
            CheckedAttribute("cwd", "The folder that it runs in; its own of the run where it is null.", path_text,
                             "the path of a folder"),
            CheckedAttribute("env", "Variables in addition to those of this process.", environment,
                             'a mapping of texts, such as {"LANG": "C"}'),
            CheckedAttribute("grace", "For how long it may end by itself once it was told to.", duration,
                             'a duration, such as "5s"', default="5s"),
            own("pid", "The number of the process, and of its group.", type=Types.Integer),
            own("exitCode", "What it ended with; negative for a signal.", type=Types.Integer),
        ):  # fmt: skip
            cls._register_attribute(attribute)

    @classmethod
    def _register_traces(cls) -> None:
        cls._register_trace(Trace("stdout", "What it printed.", enabled=True))
        cls._register_trace(Trace("stderr", "What it printed to its standard error.", enabled=True))

    def do_deploy(self) -> None:
        """Refuse what cannot run."""
        if not self.get("command"):
            raise MissingPartError(self.name, "command", 'set it to a list of words, such as ["ls", "-l"]')
        if self.get("cwd"):
            self.fixed_path("cwd")
        super().do_deploy()

    def do_start(self) -> None:
        """Start it; its end comes by itself."""
        words, cwd = self.get("command"), Path(self.fixed_path("cwd")) if self.get("cwd") else self.folder
        with self.lock:  # its end waits until it counts as STARTED
            process = self._begun(words, cwd)
            self._process, self._is_stopping = process, False
            CHILDREN.watch(process, lambda: self._ended(process))
            self._set_own("pid", process.pid)
            self.set_started()
        if self.state >= ResourceState.FAILED:  # it was released meanwhile
            self._signal(signal.SIGKILL, process)

    def _begun(self, words: list[str], cwd: Path) -> subprocess.Popen[bytes]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.written("stdout").open("ab") as stdout, self.written("stderr").open("ab") as stderr:
                return subprocess.Popen(
                    words,
                    cwd=cwd,
                    env={**os.environ, **(self.get("env") or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            said = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            raise ProcessFailedError(f"cannot run {words[0]} in {cwd}: {said}") from error

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        """Reap it with what is left of its group, and say how it ended."""
        with self.lock:
            _kill_group(process.pid, signal.SIGKILL)  # not reaped yet: the number is still ours
            code = process.wait()
            self._process = None
            is_stopped = code == 0 or self._is_stopping
            self._note_own("exitCode", code)
            if self.state is ResourceState.STARTED and is_stopped:
                self.set_stopped()
        if self._is_releasing:
            self.later(self.finish_release)
        elif self.state is ResourceState.STARTED:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            reason = f"it ended with {how}{self._last_words()}"
            self.later(lambda: self.fail(reason))

    def _last_words(self) -> str:
        try:
            tail = self.written("stderr").read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        except OSError:
            return ""
        return f": {tail.splitlines()[-1]}" if tail else ""

    def do_reconnect(self, verb: str | None) -> None:
        """Say that nobody knows what became of it: it was a child of the process that died."""
        if verb == "start" or (verb in (None, "stop") and self.state is ResourceState.STARTED):
            pid = self.get("pid")
            still = (
                f"; look for process {pid}, which may still run" if pid and self.state is ResourceState.STARTED else ""
            )
            self.fail(f"it was a child of the process that died, and how it ends is not known{still}")
        else:
            super().do_reconnect(verb)

    # --- the end ------------------------------------------------------------------------------------------------------

    def do_stop(self) -> None:
        """Tell it to end; it is STOPPED when it has."""
        self.end_work()

    def end_work(self) -> None:
        """Tell it to end, and end it when its grace is over."""
        self._is_stopping = True
        process = self._process
        if process is not None:
            self._signal(signal.SIGTERM, process)
            self.later(lambda: self._signal(signal.SIGKILL, process), after=self.get("grace"))

    def do_release(self) -> None:
        """Tell it to end; it is RELEASED when it has."""
        with self.lock:
            self._is_releasing = is_running = self._process is not None
            self.end_work()
        if not is_running:
            self.finish_release()

    def end_at_once(self) -> None:
        """Kill it, with all of its group."""
        process = self._process
        if process is not None:
            self._signal(signal.SIGKILL, process)

    def _signal(self, number: signal.Signals, process: subprocess.Popen[bytes]) -> None:
        with self.lock:
            if self._process is process:
                _kill_group(process.pid, number)


def _kill_group(number: int, what: signal.Signals) -> None:
    try:
        os.killpg(number, what)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise StorageError(f"process group {number} cannot be ended: {error.strerror}") from error
