"""Addresses of brokers: free to listen on, reachable from here, answered by an MQTT broker."""

from __future__ import annotations

import contextlib
import enum
import errno
import ipaddress
import secrets
import socket
import ssl
import struct
from typing import Any

from fedmon.broker.errors import BrokerStartError, PortInUseError

_CONNACK = 0x20
_DISCONNECT = b"\xe0\x00"


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


class ProbeAnswer(enum.Enum):
    """What came back from a port; a broker that refuses us is a broker."""

    ACCEPTED = "accepted"
    REFUSED = "refused by the broker"
    FOREIGN = "not an MQTT broker"
    SILENT = "nobody answers"


def probe(host: str, port: int, *, timeout_s: float, tls: bool = False) -> ProbeAnswer:
    """Connect, send an MQTT 3.1.1 CONNECT without a user, and read the CONNACK.

    With ``tls`` the certificate is not checked, as nothing secret is sent. Source: MQTT 3.1.1, sections 3.1 and 3.2.
    """
    client_id = f"probe-{secrets.token_hex(6)}".encode()
    clean_session, keepalive_s = 0x02, 10
    body = b"\x00\x04MQTT\x04" + struct.pack(">BHH", clean_session, keepalive_s, len(client_id)) + client_id
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=timeout_s))
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                connection = stack.enter_context(context.wrap_socket(connection))
            connection.sendall(bytes([0x10, len(body)]) + body)
            answer = b""
            while len(answer) < 4 and (part := connection.recv(4 - len(answer))):
                answer += part
            if len(answer) < 4 or answer[0] != _CONNACK or answer[1] != 2:
                return ProbeAnswer.FOREIGN if answer else ProbeAnswer.SILENT
            if answer[3]:
                return ProbeAnswer.REFUSED
            connection.sendall(_DISCONNECT)
            return ProbeAnswer.ACCEPTED
    except ssl.SSLError:
        return ProbeAnswer.FOREIGN
    except OSError:
        return ProbeAnswer.SILENT
