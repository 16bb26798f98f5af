"""The daemon's side of the launcher: start it, have it start keepers, and hear from them."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

import fedmon
from fedmon.common import __version__
from fedmon.common.errors import ConflictError, FedmonError
from fedmon.common.files import LockFile
from fedmon.node.runs.folder import JobFolder, JobOrder
from fedmon.node.runs.sandbox.kernel import sealed

logger = logging.getLogger(__name__)

READY, TAKEN = f"ready {__version__}".encode(), b"taken"
MAX_POKE_BYTES = 256
_START_TIMEOUT_S = 20.0


class LauncherError(FedmonError):
    """No keeper can be started now; names the cause."""


class Launcher:
    """Starts keepers of jobs by a small process, which forks much faster than a daemon with its threads could.

    ``on_poke`` is called with a job's id by a thread named ``launcher`` if its folder has news: it must only hand over.
    Keepers outlive the launcher and the daemon; one of an earlier daemon sends no pokes. The launcher is started with a
    job, and again if it ended. All methods are safe from any thread.
    """

    def __init__(self, on_poke: Callable[[str], None]) -> None:
        self._on_poke = on_poke
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: socket.socket | None = None
        self._pokes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_stopped = False
        self._thread = threading.Thread(target=self._listen, name="launcher", daemon=True)
        self._thread.start()

    def launch(self, order: JobOrder, plan: bytes, inputs: bytes | int | None = None) -> None:
        """Start a job with the exact bytes of a plan, and with inputs: bytes, or a descriptor that stays the caller's.

        On return the job's lock is held: from then on its folder tells everything. Raises ConflictError if the job
        runs already or is over, StorageError if its folder cannot be written, LauncherError and OSError.
        """
        folder = JobFolder(Path(order.folder))
        message = os.fsencode(folder.path.absolute())
        contents = {"order": msgspec.json.encode(order), "plan": plan}
        if isinstance(inputs, bytes):
            contents["inputs"] = inputs
        with contextlib.ExitStack() as opened, self._lock:
            given: list[int] = []
            for name, content in contents.items():
                given.append(sealed(name, content))
                opened.callback(os.close, given[-1])
            if isinstance(inputs, int):
                given.append(inputs)
            if self._is_stopped:
                raise LauncherError("the launcher of jobs was stopped, as at the end of its node")
            if self._hand_over(message, folder.prepare(), given):
                return
            # It was killed, perhaps after it had forked: then the holder of the lock keeps the job.
            try:
                lock = folder.prepare()
            except ConflictError:
                return
            if not self._hand_over(message, lock, given):
                raise LauncherError(f"cannot hand job {order.job_id} to the launcher: it ended twice")

    def stop(self) -> None:
        """End the launcher for good; the keepers that it started continue."""
        with self._lock:
            self._is_stopped = True
            self._end_process()
        self._pokes[0].shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in self._pokes:
            each.close()

    def _hand_over(self, message: bytes, lock: LockFile, given: list[int]) -> bool:
        """Send an order with its descriptors, and let go of the lock; return False if the launcher did not take it.

        A launcher that is not there is started first, and one that does not answer is ended: its socket may hold the
        lock. Raises LauncherError.
        """
        try:
            commands = self._commands or self._start_process()
            socket.send_fds(commands, [message], [lock.descriptor, *given], socket.MSG_NOSIGNAL)
            if commands.recv(len(TAKEN)) == TAKEN:
                return True
        except OSError as error:
            logger.warning("the launcher of jobs does not answer, and is restarted: %s", error)
        finally:
            lock.release()
        self._end_process()
        return False

    def _start_process(self) -> socket.socket:
        """Start the process, and return its socket once it is ready. Raises LauncherError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed = [theirs.fileno(), self._pokes[1].fileno()]
        root = str(Path(fedmon.__file__).resolve().parent.parent)
        path = os.pathsep.join(dict.fromkeys([root, *(each for each in sys.path if each)]))
        command = [sys.executable, "-s", "-S", "-B", "-P", "-X", "utf8", "-m", "fedmon.node.runs.keeper"]
        try:
            # An empty environment: that of a process can be read as long as it lives, and bubblewrap hands it on.
            self._process = subprocess.Popen(
                [*command, *map(str, passed)],
                env={"PYTHONPATH": path},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise LauncherError(f"cannot start the launcher of jobs ({sys.executable}): {error.strerror}") from error
        finally:
            theirs.close()
        self._commands = ours
        ours.settimeout(_START_TIMEOUT_S)
        ready = b""
        with contextlib.suppress(OSError):
            ready = ours.recv(MAX_POKE_BYTES)
        if ready == READY:
            return ours
        self._end_process()
        # Keepers of another version might not understand the orders of this node.
        raise LauncherError(
            "the installed fedmon was updated while this node runs: 'fedmon node stop', then 'fedmon node start'"
            if ready
            else f"the launcher of jobs did not come up within {_START_TIMEOUT_S:g} s; see the node's standard error"
        )

    def _listen(self) -> None:
        """Hand over pokes until the stop."""
        while poke := self._pokes[0].recv(MAX_POKE_BYTES):
            self._on_poke(poke.decode(errors="replace"))

    def _end_process(self) -> None:
        """End the launcher's process; keepers continue."""
        process, self._process = self._process, None
        commands, self._commands = self._commands, None
        if commands is not None:
            commands.close()
        if process is not None:
            process.kill()
            process.wait()
