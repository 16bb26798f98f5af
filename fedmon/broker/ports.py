"""Find out whether an address can be listened on, and find free ports."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any

from fedmon.broker.errors import BrokerStartError, PortInUseError


def require_free(host: str, port: int) -> None:
    """Check that a broker could listen there.

    Raises PortInUseError when another process does, BrokerStartError when the address is not one of this machine's.
    """
    listening(host, port).close()


def free_ports(host: str, count: int) -> list[int]:
    """Return different ports on which nobody listens at the moment."""
    with contextlib.ExitStack() as held:
        return [int(held.enter_context(listening(host, 0)).getsockname()[1]) for _ in range(count)]


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def numeric_host(host: str) -> str:
    """Return the one address that a listener is bound to; a name may stand for several. Every address stays ""."""
    return _address(host, 0)[4][0] if host else ""


def reachable_host(host: str) -> str:
    """Return the address under which this machine reaches a listener bound to ``host``."""
    if not host:
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return host


def in_url(host: str) -> str:
    """Return ``host`` as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def listening(host: str, port: int) -> socket.socket:
    """Listen on an address, as a server or to learn whether one could; port 0 picks a free one.

    Raises PortInUseError when another process does, BrokerStartError when the address is not one of this machine's.
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
        cause = error.strerror or str(error)
        raise BrokerStartError(
            f"cannot listen on port {port} of {host or 'every address'}: {cause}; use an address of this machine such "
            f"as 127.0.0.1, and a port above 1023 unless you are root"
        ) from None
    return listener


def _address(host: str, port: int) -> tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # IPv4 first: every broker and client speaks it.
    return min(found, key=lambda entry: entry[0] != socket.AF_INET)
