"""Ask a port whether an MQTT broker answers there, with the fewest bytes that prove it."""

from __future__ import annotations

import contextlib
import enum
import secrets
import socket
import ssl
import struct


class Answer(enum.Enum):
    """What came back from a port."""

    ACCEPTED = "accepted"
    REFUSED = "refused by the broker"
    FOREIGN = "not an MQTT broker"
    SILENT = "nobody answers"


_CONNACK = 0x20
_DISCONNECT = b"\xe0\x00"


def ask(host: str, port: int, *, timeout_s: float, tls: bool = False) -> Answer:
    """Connect, send an MQTT 3.1.1 CONNECT without a user, and read the CONNACK.

    A broker that refuses us is a broker: REFUSED. With ``tls`` the certificate is not checked, as nothing secret is
    sent. Source: MQTT 3.1.1, sections 3.1 and 3.2.
    """
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=timeout_s))
            if tls:
                connection = stack.enter_context(_unchecked_context().wrap_socket(connection))
            connection.sendall(_connect_packet(f"probe-{secrets.token_hex(6)}"))
            answer = _read(connection, 4)
            if len(answer) < 4 or answer[0] != _CONNACK or answer[1] != 2:
                return Answer.FOREIGN if answer else Answer.SILENT
            if answer[3]:
                return Answer.REFUSED
            connection.sendall(_DISCONNECT)
            return Answer.ACCEPTED
    except ssl.SSLError:
        return Answer.FOREIGN
    except OSError:
        return Answer.SILENT


def _connect_packet(client_id: str) -> bytes:
    clean_session, keepalive_s = 0x02, 10
    body = b"\x00\x04MQTT\x04" + struct.pack(">BHH", clean_session, keepalive_s, len(client_id)) + client_id.encode()
    return bytes([0x10, len(body)]) + body


def _read(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (part := connection.recv(count - len(received))):
        received += part
    return received


def _unchecked_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
