"""Why a connection did not come about, in words that say what to look at."""

from __future__ import annotations

import socket
import ssl

from fedmon.common.settings import Host

_REFUSED_AT_ONCE = ("Not authorized", "Bad user name or password", "Unsupported protocol version", "Client identifier")


def is_permanent(cause: str) -> bool:
    """Tell whether waiting cannot help: somebody must change a password, a certificate or an id."""
    return any(words in cause for words in (*_REFUSED_AT_ONCE, "certificate", "CERTIFICATE"))


def explained(error: Exception, host: Host, timeout_s: float) -> str:
    """Say why a host could not be reached."""
    if isinstance(error, socket.gaierror):
        return f"the name {host.host!r} cannot be resolved ({error.strerror}); check the spelling and the name server"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is the broker running, and is the port right?"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s; a firewall may be in the way"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; name the right ca_file"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}; is this a TLS port?"
    if isinstance(error, ConnectionResetError):
        return "it broke off the connection; does this port speak TLS (mqtts://), or not (mqtt://), as the URL says?"
    if isinstance(error, UnicodeError):
        return f"{host.host!r} is not a host name"
    return str(error)


def refusal(reason: str, username: str | None) -> str:
    """Say why a broker did not let us in."""
    if any(words in reason for words in ("Not authorized", "Bad user name or password")):
        who = f"user {username!r}" if username else "a client without a user name"
        return f"it refused {who} ({reason}); check user name and password file"
    return f"it refused the connection ({reason})"
