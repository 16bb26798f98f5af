"""`local::Process`: a command on this machine; it survives the experiment's process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import ClassVar, Self

from fedmon.experiment.attributes import Trace, Types
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import LinkedResource, ResourceFailedError
from fedmon.experiment.types.values import CheckedAttribute, command, duration, environment, own, path_text

_SUPERVISOR = (sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")))
_RECORD_BYTES = 63
_TAIL_BYTES = 500


class SupervisedCommand:
    """A command whose supervisor outlives this process and writes the exit code to a record, a file of this run alone.

    That is a fork of `supervisor` for each command. It holds the lock of the record until the command has ended, so a
    reused pid is never taken for it.
    """

    _preparing = threading.Lock()
    _server: ClassVar[socket.socket | None] = None
    """The connection to the supervisor of this process."""

    def __init__(self, record: int, pid: int = 0) -> None:
        self.pid, self._record = pid, record

    def __del__(self) -> None:  # its waiting thread or the kill after its grace is the last to use it
        os.close(self._record)

    @classmethod
    def begin(cls, path: Path, words: list[str], *, cwd: Path, env: dict[str, str]) -> Self:
        """Run a command with a new record at ``path`` and its output beside it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with ours:
            with contextlib.ExitStack() as opened:
                opened.enter_context(theirs)
                lock = opened.enter_context(path.open("xb", buffering=0))
                fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write(b" " * _RECORD_BYTES)
                streams = [opened.enter_context(path.with_name(name).open("ab")) for name in ("stdout", "stderr")]
                descriptors = [lock.fileno(), theirs.fileno(), *(stream.fileno() for stream in streams)]
                try:
                    socket.send_fds(cls.prepare(), [b"+"], descriptors)
                except ConnectionError:  # the supervisor was killed
                    socket.send_fds(cls.prepare(anew=True), [b"+"], descriptors)
            answer = b""
            with contextlib.suppress(ConnectionError):  # the supervisor was killed
                ours.sendall(json.dumps([words, str(cwd), env]).encode() + b"\n")
                answer = ours.makefile("rb").read()
        pid, code, about = json.loads(answer) if answer else (0, errno.ECHILD, words[0])
        if code:
            raise OSError(code, os.strerror(code), about)
        return cls(os.open(path, os.O_RDONLY), pid)

    @classmethod
    def prepare(cls, *, anew: bool = False) -> socket.socket:
        """Return the connection to the supervisor; start one if there is none."""
        with cls._preparing:
            if cls._server is None or anew:
                cls._server, theirs = socket.socketpair()
                with theirs:
                    null = ((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (1, 2))
                    files = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), *null]
                    os.posix_spawn(sys.executable, _SUPERVISOR, os.environ, file_actions=files)
            return cls._server

    @classmethod
    def left(cls, path: Path) -> Self | None:
        """Return the command that another process started; None if it started none."""
        try:
            found = cls(os.open(path, os.O_RDONLY))
        except FileNotFoundError:
            return None
        while found.pid == 0:
            is_running = found.is_running
            if words := found._read():
                found.pid = words[0]
            elif not is_running:
                return None
            else:
                threading.Event().wait(0.01)  # its supervisor is about to run it
        return found

    @property
    def is_running(self) -> bool:
        """Whether the command runs, and so its pid is still its own."""
        try:
            fcntl.flock(self._record, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def wait(self) -> int | None:
        """Wait for the end; return the exit code, or None if the supervisor was killed before it could record it."""
        fcntl.flock(self._record, fcntl.LOCK_SH)
        return next(iter(self._read()[1:]), None)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process group; do nothing if it has ended. Raises ResourceFailedError."""
        try:
            if self.is_running:
                os.killpg(self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:  # it took the rights of another user
            raise ResourceFailedError(f"process group {self.pid} cannot be ended: {error.strerror}") from error

    def _read(self) -> list[int]:
        return [int(word) for word in os.pread(self._record, _RECORD_BYTES, 0).split()]


class LocalProcess(LinkedResource):
    """STARTED while the command runs, STOPPED when it ended with code 0 or was stopped, FAILED otherwise.

    It leads a process group, all of which ends with it; no shell reads its words. A stop sends SIGTERM to the group,
    and SIGKILL after ``grace``. If the experiment's process dies, the command runs on, and a reconnect adopts it.
    """

    _rtype = "local::Process"
    _help = "A command on this machine: STOPPED when it ended with code 0, FAILED otherwise."
    _platform = "local"
    _ends_itself = True
    _required_attributes = ("command",)

    own_attributes = (
        CheckedAttribute("command", "The program and its arguments.", command,
                         'a list of texts, such as ["ls", "-l"]'),
        CheckedAttribute("cwd", "The folder in which it runs; None: its own folder of the run.", path_text,
                         "the path of a folder", is_path=True),
        CheckedAttribute("env", "Variables in addition to those of this process.", environment,
                         'a mapping of texts, such as {"LANG": "C"}'),
        CheckedAttribute("grace", "The time between SIGTERM and SIGKILL at a stop.", duration,
                         'a duration, such as "5s"', default="5s"),
        own("pid", "The id of the process and of its group.", type=Types.Integer),
        own("exitCode", "Its exit code; negative for a signal.", type=Types.Integer),
    )  # fmt: skip
    own_traces = (
        Trace("stdout", "Its standard output.", enabled=True),
        Trace("stderr", "Its standard error.", enabled=True),
    )
    _process: SupervisedCommand | None = None
    _is_stopping = _is_releasing = False

    def do_deploy(self) -> None:
        """Start the supervisor of commands."""
        SupervisedCommand.prepare()
        super().do_deploy()

    def do_start(self) -> None:
        """Start the command."""
        words, cwd = self.get("command"), Path(self.get("cwd") or self.folder)
        env = {**os.environ, **(self.get("env") or {})}
        self._is_stopping = False
        with self.lock:  # its end waits until it is STARTED
            if self._process is not None:  # an attempt that took too long began it
                self.set_started()
                return
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                # Such an attempt may be over, or of another process.
                process = SupervisedCommand.left(self._record) if self._seen().attempt else None
                if process is None or not self._is_new(process):
                    self._record.unlink(missing_ok=True)
                    if self.get("exitCode") is not None:  # of the run before; a reconnect tells the two apart by this
                        self.note("exitCode", None)
                    process = SupervisedCommand.begin(self._record, words, cwd=cwd, env=env)
            except OSError as error:
                said = f"cannot run {words[0]} in {cwd}: {error.strerror}: {error.filename}"
                raise ResourceFailedError(said) from error
            self._follow(process)

    def do_reconnect(self, verb: str | None) -> None:
        """Adopt a command that another process started, whether it still runs or has ended."""
        is_started = self.state is ResourceState.STARTED
        found = SupervisedCommand.left(self._record)
        if verb not in (None, "start", "stop") or not (is_started or (verb == "start" and self._is_new(found))):
            super().do_reconnect(verb)
        elif found is not None:
            self._is_stopping |= verb == "stop"
            self._follow(found)
            if self._is_stopping:  # also if a stop was faster than the reconnect
                self.end_work()
        elif is_started:
            self.fail("no record of its process is left in the run's folder")
        else:
            super().do_reconnect(verb)

    @property
    def _record(self) -> Path:
        return self.written("process")

    def _is_new(self, found: SupervisedCommand | None) -> bool:
        return self.get("exitCode") is None or (found is not None and found.pid != self.get("pid"))

    def _follow(self, process: SupervisedCommand) -> None:
        with self.lock:
            if self._process is not None:  # a release was faster than the reconnect
                return
            self._process = process
            threading.Thread(target=self._wait, args=(process,), name=f"process-{process.pid}", daemon=True).start()
            if process.pid != self.get("pid"):
                self.note("pid", process.pid)
            if self.state in (ResourceState.READY, ResourceState.STOPPED):
                self.set_started()
        if self.state >= ResourceState.FAILED:  # released meanwhile
            process.send(signal.SIGKILL)

    def _wait(self, process: SupervisedCommand) -> None:
        code = process.wait()
        self._trapped(lambda: self._ended(code))

    def _ended(self, code: int | None) -> None:
        with self.lock:
            self._process = None
            # The retry of a start that took too long notes it.
            is_early = self.state in (ResourceState.READY, ResourceState.STOPPED) and not self._is_releasing
            if code is not None and not is_early:
                self.note("exitCode", code)
            if self.state is ResourceState.STARTED and (code == 0 or self._is_stopping):
                self.set_stopped()
        if self._is_releasing:
            self.finish_release()
        elif self.state is ResourceState.STARTED:
            self.fail(self._how(code))

    def _how(self, code: int | None) -> str:
        if code is None:
            return f"its supervisor was killed, so its exit code is not known; process {self.get('pid')} may still run"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines: list[str] = []
        with contextlib.suppress(OSError), self.written("stderr").open("rb") as file:  # the command may have removed it
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").split("\n")
        return ": ".join([f"it ended with {how}", *[line.strip() for line in lines if line.strip()][-1:]])

    # --- the end ------------------------------------------------------------------------------------------------------

    def do_stop(self) -> None:
        """Send SIGTERM; the resource is STOPPED when the command has ended."""
        self.end_work()

    def end_work(self) -> None:
        """Send SIGTERM, and SIGKILL after ``grace``."""
        self._is_stopping = True
        process = self._process
        if process is not None:
            process.send(signal.SIGTERM)
            self.later(lambda: process.send(signal.SIGKILL), after=self.get("grace"))

    def do_release(self) -> None:
        """Send SIGTERM; the resource is RELEASED when the command has ended."""
        with self.lock:
            if self._process is None and (left := SupervisedCommand.left(self._record)) and left.is_running:
                self._follow(left)  # of another process
            self._is_releasing = is_running = self._process is not None
            self.end_work()
        if not is_running:
            self.finish_release()

    def end_at_once(self) -> None:
        """Kill the command with all of its group."""
        process = self._process
        if process is not None:
            process.send(signal.SIGKILL)
