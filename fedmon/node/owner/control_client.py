"""The shell's end of the control socket: sends the owner's commands to a running daemon."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Self

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError, NoAnswerError, StorageError
from fedmon.node.owner.control import CHUNK_BYTES, SOCKET_NAME, ControlError, peer_pid, short_address

MAX_RESPONSE_BYTES = 64 * 1024 * 1024


class DaemonNotRunningError(FedmonError):
    """No daemon listens in this node folder."""

    exit_code = 5


class ControlClient:
    """Sends the owner's commands to the daemon of a node folder; a context manager, for one thread."""

    def __init__(self, folder: Path, *, timeout_s: float = 30.0) -> None:
        self._path = folder / SOCKET_NAME
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        if self._socket is None:
            self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect. Raises DaemonNotRunningError when nobody listens, NoAnswerError when a daemon takes no calls."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(self._timeout_s)
        try:
            with short_address(self._path) as address:
                client.connect(address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            client.close()
            raise DaemonNotRunningError(
                f"the node of {self._path.parent} is not running: start it with 'fedmon node start'"
            ) from error
        except (BlockingIOError, TimeoutError) as error:
            client.close()
            raise NoAnswerError(f"the daemon of {self._path.parent} does not take calls; look at its log") from error
        except OSError as error:
            client.close()
            raise StorageError(f"cannot connect to {self._path}: {error.strerror or error}") from error
        self._socket = client

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def daemon_pid(self) -> int | None:
        """The process that listens, where the system tells (Linux)."""
        return peer_pid(self._socket) if self._socket is not None else None

    def call(self, command: str, **args: Any) -> dict[str, Any]:
        """Run one command in the daemon and return its result.

        Raises ControlError with the daemon's own words when it refused, NoAnswerError when it stayed silent, and
        DaemonNotRunningError when it went away meanwhile.
        """
        if self._socket is None:
            raise RuntimeError("the client is a context manager; use it inside its block")
        try:
            self._socket.sendall(msgspec.json.encode({"command": command, "args": args}) + b"\n")
            response = self._receive(self._socket)
        except TimeoutError as error:
            raise NoAnswerError(
                f"the daemon of {self._path.parent} did not answer '{command}' within {self._timeout_s:g} s"
            ) from error
        except (OSError, EOFError) as error:
            raise DaemonNotRunningError(f"the daemon of {self._path.parent} went away before it answered") from error
        if "error" in response:
            raise ControlError(response["error"])
        result: dict[str, Any] = response["result"]
        return result

    def _receive(self, client: socket.socket) -> dict[str, Any]:
        deadline = Deadline(self._timeout_s)
        received = bytearray()
        while not received.endswith(b"\n"):
            client.settimeout(max(0.001, deadline.left_s()))
            chunk = client.recv(CHUNK_BYTES)
            received += chunk
            if not chunk or len(received) > MAX_RESPONSE_BYTES:
                raise EOFError
        return msgspec.json.decode(received, type=dict[str, Any])
