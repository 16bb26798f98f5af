"""Find out whether an address can be listened on, and find free ports."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from fedmon.broker.errors import BrokerStartError, PortInUseError


def require_free(host: str, port: int) -> None:
    """Check that a broker could listen there.

    Raises PortInUseError when another process does, BrokerStartError when the address is not one of this machine's.
    """
    _bound_port(host, port)


def free_port(host: str) -> int:
    """Return a port on which nobody listens at the moment."""
    return _bound_port(host, 0)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable_host(host: str) -> str:
    """Return the address under which this machine reaches a listener bound to ``host``."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def in_url(host: str) -> str:
    """Return ``host`` as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _bound_port(host: str, port: int) -> int:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            if os.name == "posix":
                # As the brokers do it: a port whose last connections are still closing is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
            bound: int = probe.getsockname()[1]
            return bound
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(host, port) from None
        cause = error.strerror or str(error)
        raise BrokerStartError(
            f"cannot listen on port {port} of {host or '*'}: {cause}; use an address of this machine such as "
            f"127.0.0.1, and a port above 1023 unless you are root"
        ) from None
