"""Which addresses a party fetches files from: those that its owner allowed, and nothing that they can be bent to.

A URL must lie under an allowed one. Its name is resolved once, every address found is checked, and the connection goes
to a checked address, so that an answer of the name service that changes in between changes nothing.
"""

from __future__ import annotations

import ipaddress
import queue
import re
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError

MAX_URL_LENGTH = 2048

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_PLAIN = re.compile(r"[!-~]+")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_HIDDEN = re.compile(r"%(2f|5c|00|2e|25)", re.IGNORECASE)
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
# IPv6 forms that carry an IPv4 address to a gateway: NAT64, 6to4, Teredo.
_CARRIERS = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))


class RepositoryError(FedmonError):
    """A file could not be stored in, or fetched from, the file repository.

    ``http_status`` is what the server answered, 0 where it answered nothing or the answer was not the trouble.
    """

    def __init__(self, message: str, *, http_status: int = 0) -> None:
        super().__init__(message)
        self.http_status = http_status


class UrlRefusedError(RepositoryError):
    """A URL, or an address behind it, is not one that this party connects to."""

    exit_code = 4


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A URL that may be used, and the checked addresses that its host has."""

    url: str
    host: str
    port: int
    encrypted: bool
    addresses: tuple[str, ...]


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str


def addresses_of(host: str) -> list[str]:
    """Ask the system for every address of a host. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def checked_target(
    url: str, allowed_urls: Sequence[str], *, deadline: Deadline, resolve: Callable[[str], list[str]] = addresses_of
) -> Target:
    """Return where a URL leads when it may be used.

    https goes to public addresses, and to private ones too, as the certificate proves the host; http goes only to
    loopback and private addresses that are written as numbers (or ``localhost``). Loopback is reached by no other
    name. ``resolve`` is asked once. Raises UrlRefusedError, or RepositoryError when the name is not resolved in time.
    """
    parts = _parsed(url)
    if not any(_lies_under(parts, _parsed(allowed)) for allowed in allowed_urls):
        raise UrlRefusedError(
            f"{url!r} is not under an allowed address; allowed are: {', '.join(allowed_urls) or 'none'} "
            f"(allowed_urls in [repository])"
        )
    addresses = _resolved(parts.host, resolve, deadline)
    for address in addresses:
        if reason := _refusal(parts, address):
            raise UrlRefusedError(f"{url!r} leads to {address}: {reason}")
    return Target(
        url=url,
        host=parts.host,
        port=parts.port,
        encrypted=parts.scheme == "https",
        addresses=tuple(str(address) for address in addresses),
    )


def _parsed(url: str) -> _Parts:
    if len(url) > MAX_URL_LENGTH or not _PLAIN.fullmatch(url) or "\\" in url:
        raise UrlRefusedError(f"{url[:100]!r} is not a plain URL of at most {MAX_URL_LENGTH} ASCII characters")
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as error:
        raise UrlRefusedError(f"{url!r} is not a URL: {error}") from None
    if split.scheme not in ("http", "https"):
        raise UrlRefusedError(f"{url!r} is neither http nor https")
    if "@" in split.netloc or split.fragment or "#" in url:
        raise UrlRefusedError(f"{url!r} holds a user name or a fragment; neither belongs there")
    return _Parts(
        scheme="https" if split.scheme == "https" else "http",
        host=_host(split, url),
        port=port or (443 if split.scheme == "https" else 80),
        path=_path(split, url),
    )


def _host(split: SplitResult, url: str) -> str:
    host = (split.hostname or "").rstrip(".")
    if "[" in split.netloc:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise UrlRefusedError(f"{url!r} names no usable IPv6 address") from None
    if not _HOST.fullmatch(host):
        raise UrlRefusedError(f"{url!r} names no usable host")
    return host


def _path(split: SplitResult, url: str) -> str:
    if _HIDDEN.search(split.path) or any(unquote(part) in {".", ".."} for part in split.path.split("/")):
        raise UrlRefusedError(f"{url!r} hides a way out of its path")
    return split.path


def _lies_under(parts: _Parts, base: _Parts) -> bool:
    return (parts.scheme, parts.host, parts.port) == (base.scheme, base.host, base.port) and (
        parts.path.rstrip("/") == base.path.rstrip("/") or parts.path.startswith(base.path.rstrip("/") + "/")
    )


def _resolved(host: str, resolve: Callable[[str], list[str]], deadline: Deadline) -> list[_Ip]:
    """Resolve a name within the deadline, which the name service itself knows nothing of."""
    answer: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(resolve(host))
        except (OSError, UnicodeError) as error:
            answer.put(error if isinstance(error, OSError) else OSError(str(error)))

    # A resolver that hangs cannot be stopped; it must not keep a process that wants to end.
    threading.Thread(target=ask, name="fedmon-resolver", daemon=True).start()
    try:
        names = answer.get(timeout=deadline.left_s())
    except queue.Empty:
        raise RepositoryError(f"the name {host!r} was not resolved in {deadline.elapsed_s():.1f} s") from None
    if isinstance(names, OSError):
        raise RepositoryError(f"the name {host!r} cannot be resolved: {names.strerror or names}")
    return [ipaddress.ip_address(name.partition("%")[0]) for name in names]


def _refusal(parts: _Parts, address: _Ip) -> str | None:
    """Say why an address must not be connected to, or None."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _refusal(parts, address.ipv4_mapped)
        if any(address in network for network in _CARRIERS):
            return "an IPv4 address in disguise"
    if address.is_loopback:
        named = parts.host == "localhost" or _is_number(parts.host, address)
        return None if named else "this machine itself, under a name that does not say so"
    if any(address.version == network.version and address in network for network in _PRIVATE):
        if parts.scheme == "https" or _is_number(parts.host, address):
            return None
        return "a private address behind a name; use https, or allow the address itself"
    if not address.is_global or address.is_multicast:
        return "not an address of a file server (link-local, multicast or reserved)"
    return None if parts.scheme == "https" else "a public address without TLS; use https"


def _is_number(host: str, address: _Ip) -> bool:
    try:
        return ipaddress.ip_address(host) == address
    except ValueError:
        return False
