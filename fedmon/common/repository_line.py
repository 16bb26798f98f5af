"""The one connection of a transfer: to an address that was checked, and no longer than until its deadline."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedmon.common.clock import Deadline
from fedmon.common.repository_address import Target

if TYPE_CHECKING:
    import requests


class Line:
    """The one connection to a target: it goes to a checked address, and is cut when the deadline passes."""

    def __init__(self, target: Target, deadline: Deadline) -> None:
        self._target, self._deadline = target, deadline
        self._cutter: threading.Timer | None = None
        self._second_handle: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._cutter is not None:
            self._cutter.cancel()
            self._cutter.join()
        if self._second_handle is not None:
            self._second_handle.close()

    def connect(self) -> socket.socket:
        """Connect to the first checked address that answers. Raises OSError."""
        failure: OSError = OSError("no address")
        for address in self._target.addresses:
            try:
                connection = socket.create_connection((address, self._target.port), timeout=self._deadline.left_s())
            except OSError as error:
                failure = error
                continue
            # A timeout of the socket starts anew with each byte that drips in; only cutting the line ends all of it.
            self._second_handle = connection.dup()
            self._cutter = threading.Timer(self._deadline.left_s(), self._cut)
            self._cutter.name = "fedmon-download-deadline"
            self._cutter.start()
            return connection
        raise failure

    def _cut(self) -> None:
        if self._second_handle is not None:
            with contextlib.suppress(OSError):
                self._second_handle.shutdown(socket.SHUT_RDWR)

    def adapter(self, ca_file: Path | None) -> requests.adapters.HTTPAdapter:
        """Make what has `requests` use this line, and the system's authorities unless others are given."""
        from requests.adapters import HTTPAdapter
        from urllib3.connection import HTTPConnection, HTTPSConnection
        from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
        from urllib3.exceptions import NewConnectionError

        line = self

        def new_connection(connection: HTTPConnection) -> socket.socket:
            try:
                return line.connect()
            except OSError as error:
                raise NewConnectionError(connection, str(error)) from error

        class Plain(HTTPConnection):
            _new_conn = new_connection

        class Encrypted(HTTPSConnection):
            _new_conn = new_connection

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class EncryptedPool(HTTPSConnectionPool):
            ConnectionCls = Encrypted

        class Adapter(HTTPAdapter):
            def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
                context = ssl.create_default_context(cafile=ca_file)
                super().init_poolmanager(*arguments, **options, ssl_context=context)
                self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": EncryptedPool}

        return Adapter(max_retries=0)
