"""The door between the owner's shell and a running daemon: a Unix socket in the node folder.

One request and one response a line, both JSON objects: ``{"command": "plan-list", "args": {}}`` is answered by
``{"result": {...}}`` or by ``{"error": {"message": ..., "type": ..., "exit_code": ...}}``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.errors import FedmonError, InvalidInputError, StorageError

SOCKET_NAME = "control.sock"
MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Room for a training plan of the largest size that a node takes, escaped as JSON."""
MAX_CONNECTIONS = 16
IDLE_TIMEOUT_S = 10.0
ACCEPT_AGAIN_S = 1.0
SPARE_DESCRIPTORS = 4
"""Kept for the owner when the process may open no more files: one for the connection, the others for its command."""
_BACKLOG = 128

_SUN_PATH_BYTES = 100
"""A Unix address holds 104 to 108 bytes. Source: sys/un.h of Linux (108), macOS and the BSDs (104)."""
CHUNK_BYTES = 65_536
_PEER = struct.Struct("3i")

logger = logging.getLogger(__name__)

Submit = Callable[[str, dict[str, Any]], dict[str, Any]]


class ControlError(FedmonError):
    """The daemon refused a command; carries the message, the type of error and the exit code that it gave."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(str(facts["message"]))
        self.exit_code = int(facts["exit_code"])
        self._type = str(facts["type"])

    def facts(self) -> dict[str, str | int]:
        """Return the daemon's error as it would have been without a socket between."""
        return {**super().facts(), "type": self._type}


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command of the owner."""

    command: str
    args: dict[str, Any] = {}


class ControlServer:
    """Hands the owner's commands to the daemon, one at a time, on a thread of its own.

    ``submit`` runs a command on the router thread and returns its result, or raises a FedmonError; it must end within
    a time of its own. A client whose request is not whole within ``idle_timeout_s``, or that leaves its response unread
    for as long, is cut off, and never keeps others waiting. ``start`` and ``stop`` may be called from any thread.
    """

    def __init__(self, folder: Path, submit: Submit, *, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self._folder = folder
        self._idle_timeout_s = idle_timeout_s
        self._submit = submit
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._connections: dict[socket.socket, _Connection] = {}
        self._thread = threading.Thread(target=self._serve, name="fedmon-control", daemon=True)
        self._stopping = False
        self._spare: list[int] = []
        self._accept_again: float | None = None

    def start(self) -> None:
        """Listen. The caller holds the folder's lock, so a socket file that lies there is a dead daemon's.

        Raises StorageError when the socket cannot be made.
        """
        path = self._folder / SOCKET_NAME
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            with short_address(path) as address:
                self._listener.bind(address)
            path.chmod(0o600)
            self._listener.listen(_BACKLOG)
        except OSError as error:
            self._listener.close()
            raise StorageError(f"cannot listen on {path}: {error.strerror}") from error
        self._listener.settimeout(0.0)
        self._wakened.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._keep_spare()
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close the door, and wait at most so long for the command that is being carried out."""
        self._stopping = True
        self._waker.send(b"x")
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            with contextlib.suppress(FileNotFoundError):
                (self._folder / SOCKET_NAME).unlink()
            self._listener.close()
        if self._thread.is_alive():
            # A command that waits for a busy node must not hold up its stop; the thread ends with the process.
            return
        self._waker.close()
        self._wakened.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._next_timeout_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif (connection := self._connections.get(key.data)) is not None:
                    self._attend(connection, events)
            self._close_expired()
            if self._accept_again is not None and self._accept_again <= time.monotonic():
                self._accept_again = None
                self._selector.register(self._listener, selectors.EVENT_READ)
        self._give_spare()
        for connection in list(self._connections.values()):
            self._close(connection)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # mostly EMFILE; the client stays in the backlog
            if self._spare:
                logger.warning("control connection: %s; spare file descriptors are used", error.strerror)
                self._give_spare()
            else:
                self._selector.unregister(self._listener)
                self._accept_again = time.monotonic() + ACCEPT_AGAIN_S
            return
        if not _is_ours(client):
            logger.warning("control connection refused: it comes from another user")
            client.close()
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._close(min(self._connections.values(), key=lambda connection: connection.expires))
        client.settimeout(0.0)
        self._connections[client] = _Connection(client, self._idle_timeout_s)
        self._selector.register(client, selectors.EVENT_READ, data=client)

    def _keep_spare(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_spare(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _attend(self, connection: _Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                connection.receive()
            if events & selectors.EVENT_WRITE:
                connection.send()
            while not connection.unsent and (line := connection.next_line()) is not None:
                connection.unsent = memoryview(self._answer(line))
                connection.send()
        except (OSError, EOFError) as error:
            logger.debug("control connection ended: %s", error)
            self._close(connection)
            return
        wanted = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        self._selector.modify(connection.socket, wanted, data=connection.socket)

    def _answer(self, line: bytes) -> bytes:
        try:
            request = msgspec.json.decode(line, type=ControlRequest)
            return msgspec.json.encode({"result": self._submit(request.command, request.args)}) + b"\n"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            told = InvalidInputError(f"not a control request: {error}").facts()
        except FedmonError as error:
            told = error.facts()
        except Exception as error:  # one command of the owner never ends the daemon
            logger.exception("control command failed")
            message = f"the daemon failed on this command: {type(error).__name__}: {error}"
            told = {"message": message, "type": type(error).__name__, "exit_code": 1}
        return msgspec.json.encode({"error": told}) + b"\n"

    def _next_timeout_s(self) -> float | None:
        due = [connection.expires for connection in self._connections.values()]
        if self._accept_again is not None:
            due.append(self._accept_again)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _close_expired(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._connections.values() if each.expires <= now]:
            logger.warning("control connection closed: nothing whole came or went for %.1f s", self._idle_timeout_s)
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket]
        connection.socket.close()
        if not self._stopping:
            self._keep_spare()


class _Connection:
    """The half-read request and the half-sent response of one client."""

    def __init__(self, client: socket.socket, idle_timeout_s: float) -> None:
        self.socket = client
        self._idle_timeout_s = idle_timeout_s
        self.unsent = memoryview(b"")
        self._received = bytearray()
        self._touch()

    def receive(self) -> None:
        """Take what has arrived. Raises EOFError when no whole request will ever be."""
        chunk = self.socket.recv(CHUNK_BYTES)
        if not chunk:
            raise EOFError("closed by the client")
        self._received += chunk
        if len(self._received) > MAX_REQUEST_BYTES:
            raise EOFError(f"a request over {MAX_REQUEST_BYTES} bytes")

    def next_line(self) -> bytes | None:
        """Return the next whole request, or None until it is there."""
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._touch()
        self._received = rest
        return bytes(line)

    def send(self) -> None:
        """Send what the socket takes now; ``unsent`` keeps the rest."""
        self._touch()
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def _touch(self) -> None:
        self.expires = time.monotonic() + self._idle_timeout_s


def peer_pid(connected: socket.socket) -> int | None:
    """Return the process at the other end of a Unix socket, where the system tells (Linux)."""
    return _peer(connected)[0] if sys.platform == "linux" else None


def _is_ours(client: socket.socket) -> bool:
    """Tell whether a client runs as the daemon's user or as root; elsewhere than on Linux the 0600 mode must do."""
    return sys.platform != "linux" or _peer(client)[1] in (os.geteuid(), 0)


def _peer(connected: socket.socket) -> tuple[int, int]:
    """Return pid and user id. Source: unix(7), SO_PEERCRED."""
    pid, uid, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield an address of ``path`` that is short enough for a socket, if need be through a link in a private folder."""
    if len(os.fsencode(path)) <= _SUN_PATH_BYTES:
        yield str(path)
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fedmon-") as private:
        link = Path(private, "n")
        link.symlink_to(path.parent)
        yield str(link / path.name)
