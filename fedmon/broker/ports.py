"""Addresses of brokers: free to listen on, reachable from here, taken."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any

from fedmon.common.errors import ConflictError, FedmonError


class PortInUseError(ConflictError):
    """Another process listens on the wanted address; a broker of unknown origin is never adopted."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} of {host} is in use by another process; stop that process, or choose another port "
            f"with --port (0 picks a free one)"
        )
        self.host, self.port = host, port


class BrokerStartError(FedmonError):
    """A broker or repository cannot start, or its process ended before it was ready; says why."""


def free_ports(host: str, count: int) -> list[int]:
    """Return different ports that are free at the moment."""
    with contextlib.ExitStack() as held:
        return [int(held.enter_context(listening(host, 0)).getsockname()[1]) for _ in range(count)]


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener bound to ``host``."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def numeric_host(host: str) -> str:
    """Return the one address that a listener is bound to; a name may stand for several. Every address stays ""."""
    return _address(host, 0)[4][0] if host else ""


def reachable_host(host: str) -> str:
    """Return the address under which this machine reaches a listener bound to ``host``."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "::1"
    return host or "127.0.0.1"


def url_host(host: str) -> str:
    """Return the host of the URL under which this machine reaches a listener bound to ``host``."""
    reachable = reachable_host(host)
    return f"[{reachable}]" if ":" in reachable else reachable


def listening(host: str, port: int) -> socket.socket:
    """Listen on an address, as a server or to learn whether one could; port 0 picks a free one.

    Raises PortInUseError if another process does, BrokerStartError if the address is not one of this machine's.
    """
    try:
        family, kind, protocol, _, address = _address(host, port)
        listener = socket.socket(family, kind, protocol)
        try:
            # As the brokers do it: a port whose last connections are still closing is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(host, port) from None
        raise BrokerStartError(
            f"cannot listen on port {port} of {host or 'every address'}: {error.strerror or error}; use an address of "
            f"this machine such as 127.0.0.1, and a port above 1023 unless you are root"
        ) from None
    return listener


def _address(host: str, port: int) -> tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # IPv4 first: every broker and client speaks it.
    return min(found, key=lambda entry: entry[0] != socket.AF_INET)


def is_open(host: str, port: int, *, timeout_s: float) -> bool:
    """Tell whether connections to a port are accepted."""
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), timeout=timeout_s).close()
        return True
    return False
