"""The door between the owner's shell and a running daemon: a Unix socket in the node folder.

A connection has one request and one response, each a line with a JSON object: ``{"command": "plan-list", "args": {}}``
is answered by ``{"result": {...}}`` or by ``{"error": {"message": ..., "type": ..., "exit_code": ...}}``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError, InvalidInputError, NoAnswerError, StorageError
from fedmon.common.text import sound
from fedmon.node.folder import user_name

SOCKET_NAME = "control.sock"
MAX_REQUEST_BYTES = 96 * 1024 * 1024
"""Room for the largest plan in base 64, and for names and types of the columns of the largest table."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
IDLE_TIMEOUT_S = 5.0
ACCEPT_AGAIN_S = 1.0
READ_WITHIN_S, READ_AGAIN_S = 20.0, 0.1
RESTART = "another fedmon runs here: restart it with 'fedmon node stop' and 'fedmon node start'"
SPARE_DESCRIPTORS = 4
"""Kept for the owner when the process may open no more files: one for the connection, the others for its command."""

_BACKLOG = 128
_SUN_PATH_BYTES = 100
"""A Unix address holds 104 to 108 bytes. Source: sys/un.h of Linux (108), macOS and the BSDs (104)."""
_PEER = struct.Struct("3i")
"""Process, user and group at the other end. Source: unix(7), SO_PEERCRED."""

logger = logging.getLogger(__name__)

Submit = Callable[[str, dict[str, Any], str], dict[str, Any]]


class ControlError(FedmonError):
    """The daemon refused a command; carries the message, the type of error and the exit code that it gave."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(str(facts["message"]))
        self.exit_code = int(facts["exit_code"])
        self.type = str(facts["type"])

    def facts(self) -> dict[str, str | int]:
        """Return the daemon's error as it would have been without a socket between."""
        return {**super().facts(), "type": self.type}


class _Told(dict[str, Any]):
    """A JSON object of a response, which a daemon of an older fedmon may tell only in part."""

    def __missing__(self, key: str) -> object:
        raise FedmonError(f"the daemon does not tell {key!r}; {RESTART}")


class DaemonNotRunningError(FedmonError):
    """No daemon listens in this node folder."""

    exit_code = 5


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command of the owner."""

    command: str
    args: dict[str, Any] = {}


class ControlServer:
    """Hands the owner's commands to the daemon, one after another, on its own thread.

    ``submit(command, args, by)`` is called there: it runs a command of a user on the router thread and returns its
    result within a bounded time, or raises a FedmonError. A client that sends or reads nothing for ``idle_timeout_s``
    is cut off, and the command of one that left meanwhile is not carried out. ``start`` and ``stop`` may be called from
    any thread.
    """

    def __init__(self, folder: Path, submit: Submit, *, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self._path, self._submit, self._idle_timeout_s = folder / SOCKET_NAME, submit, idle_timeout_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve_all, name="fedmon-control", daemon=True)
        self._spare: list[int] = []

    def start(self) -> None:
        """Listen. The caller holds the folder's lock, so an existing socket file is a dead daemon's.

        Raises StorageError when the socket cannot be made.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            with _short_address(self._path) as address:
                self._listener.bind(address)
            self._path.chmod(0o600)
            self._listener.listen(_BACKLOG)
        except OSError as error:
            self._listener.close()
            raise StorageError(f"cannot listen on {self._path}: {error.strerror or error}") from error
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close the door, and wait at most so long for a command that is being carried out; after a start."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout_s)
        self._path.unlink(missing_ok=True)
        self._listener.close()

    def _serve_all(self) -> None:
        self._keep_spare()
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:  # mostly EMFILE; the client stays in the backlog
                if self._spare and not self._stopping.is_set():
                    logger.warning("control connection: %s; spare file descriptors are used", error.strerror)
                    self._give_spare()
                else:
                    self._stopping.wait(ACCEPT_AGAIN_S)
                continue
            with client:
                self._serve(client)
            self._keep_spare()
        self._give_spare()

    def _keep_spare(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_spare(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(self._idle_timeout_s)
        try:
            # Elsewhere than on Linux the 0600 mode of the socket must do.
            user = _peer(client)[1] if sys.platform == "linux" else os.geteuid()
            if user not in (os.geteuid(), 0):
                logger.warning("control connection refused: it comes from another user")
                return
            with client.makefile("rb") as requests:
                line = requests.readline(MAX_REQUEST_BYTES)
            if (is_whole := line.endswith(b"\n")) and _has_left(client):  # its time is over, and its owner was told so
                logger.warning("control connection closed: its client did not wait for its turn")
            elif is_whole:
                client.sendall(self._answer(line, user_name(user)))
        except TimeoutError:
            logger.warning("control connection closed: nothing came or went for %.1f s", self._idle_timeout_s)
        except OSError as error:
            logger.debug("control connection ended: %s", error)
        except Exception:  # one client never ends the door
            logger.exception("control connection failed")

    def _answer(self, line: bytes, by: str) -> bytes:
        try:
            request = msgspec.json.decode(line, type=ControlRequest)
            return msgspec.json.encode({"result": self._submit(request.command, request.args, by)}) + b"\n"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            told = InvalidInputError(f"not a control request: {error}").facts()
        except FedmonError as error:
            told = error.facts()
        except Exception as error:  # one command of the owner never ends the daemon
            logger.exception("control command failed")
            message = f"the daemon failed on this command: {type(error).__name__}: {error}"
            told = {"message": message, "type": type(error).__name__, "exit_code": 1}
        return msgspec.json.encode({"error": {**told, "message": sound(str(told["message"]))}}) + b"\n"


def call_daemon(folder: Path, command: str, /, *, timeout_s: float = 30.0, **args: Any) -> dict[str, Any]:
    """Run one command in the daemon of a node folder and return its result; a plan that it reads is waited for.

    Raises ControlError with the daemon's own words when it refused, NoAnswerError when it stayed silent or went away,
    and DaemonNotRunningError if no daemon listens.
    """
    deadline = Deadline(READ_WITHIN_S)
    while True:
        with _connection(folder, timeout_s) as connection:
            line = _response(connection, folder, command, args)
        response: dict[str, _Told] = json.loads(line, object_hook=_Told)
        if "error" not in response:
            return response["result"]
        error = ControlError(response["error"])
        if "unknown field" in str(error):
            raise ControlError({**error.facts(), "message": f"{error}; {RESTART}"})
        if error.type != "BeingReadError" or deadline.passed():
            raise error
        threading.Event().wait(READ_AGAIN_S)


def daemon_pid(folder: Path, *, timeout_s: float) -> int | None:
    """Return the daemon's process, 0 in another process namespace; None if the system tells no number.

    Raises DaemonNotRunningError if no daemon listens, NoAnswerError if it takes no calls.
    """
    with _connection(folder, timeout_s) as connection:
        return _peer(connection)[0] if sys.platform == "linux" else None


def _connection(folder: Path, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        with _short_address(folder / SOCKET_NAME) as address:
            connection.connect(address)
    except OSError as error:
        connection.close()
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            raise DaemonNotRunningError(
                f"the node of {folder} is not running: start it with 'fedmon node start'"
            ) from error
        if isinstance(error, (BlockingIOError, TimeoutError)):
            raise NoAnswerError(f"the daemon of {folder} does not take calls; look at its log") from error
        raise StorageError(f"cannot connect to {folder / SOCKET_NAME}: {error.strerror or error}") from error
    return connection


def _response(connection: socket.socket, folder: Path, command: str, args: Mapping[str, Any]) -> bytes:
    line, what = b"", f"'{command}'; look whether it was carried out, and at its log"
    try:
        connection.sendall(msgspec.json.encode({"command": command, "args": args}) + b"\n")
        with connection.makefile("rb") as responses:
            line = responses.readline(MAX_RESPONSE_BYTES)
    except TimeoutError as error:
        within = f"within {connection.gettimeout():g} s"
        raise NoAnswerError(f"the daemon of {folder} did not answer {within} to {what}") from error
    except OSError:
        pass
    if not line.endswith(b"\n"):
        raise NoAnswerError(f"the daemon of {folder} went away before it answered {what}")
    return line


@contextlib.contextmanager
def _short_address(path: Path) -> Iterator[str]:
    """Yield an address of ``path`` that is short enough for a socket: on Linux through a descriptor of its folder."""
    if len(os.fsencode(path)) <= _SUN_PATH_BYTES or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _has_left(client: socket.socket) -> bool:
    """Tell whether a client has closed its end for good."""
    poller = select.poll()
    poller.register(client, 0)  # a hang-up is told unasked
    return bool(poller.poll(0))


def _peer(connected: socket.socket) -> tuple[int, int]:
    """Return the process and user at the other end, on Linux. Source: unix(7), SO_PEERCRED."""
    pid, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, user
