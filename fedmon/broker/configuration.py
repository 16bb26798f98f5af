"""Render the configuration of mosquitto from the templates, for production and for the brokers that we start."""

from __future__ import annotations

import importlib.resources
import pathlib
import string
from typing import Literal

import msgspec

from fedmon.broker.errors import BrokerError
from fedmon.broker.roles import Role

MAX_PACKET_BYTES = 1_048_576

_LIMITS = {
    "max_packet_bytes": MAX_PACKET_BYTES,
    "max_inflight_messages": 200,
    "max_queued_messages": 10_000,
    "max_queued_bytes": 33_554_432,
    "max_keepalive_s": 300,
}
_MAX_CONNECTIONS = {None: 2000, Role.NODE: 2000, Role.RESEARCHER: 500, Role.MONITOR: 50}


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's certificate and key.

    With ``client_ca_folder`` a party proves itself with a certificate instead of a password: its common name is its
    id, and ``<role>s.crt`` in that folder holds the authorities that may name parties of that role.
    """

    cert_file: pathlib.PurePath
    key_file: pathlib.PurePath
    client_ca_folder: pathlib.PurePath | None = None


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One address; without a ``role`` it is open to whoever can reach it. An empty ``host`` means every address."""

    host: str
    port: int
    role: Role | None = None


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All that the templates leave open.

    ``access_folder`` holds ``acl/`` and ``passwords/``, needed when a listener has a role. ``process_user`` is the
    user that a mosquitto started by root becomes; None leaves it to mosquitto.
    """

    heading: str
    listeners: tuple[Listener, ...]
    data_folder: pathlib.PurePath
    log_file: pathlib.PurePath | Literal["stdout"]
    access_folder: pathlib.PurePath | None = None
    tls: Tls | None = None
    process_user: str | None = None


def render_mosquitto(configuration: Configuration) -> str:
    """Return the text of mosquitto.conf. Raises BrokerError when a path cannot be written into it."""
    log = configuration.log_file
    user = configuration.process_user
    return template("mosquitto.conf").substitute(
        _LIMITS,
        heading="\n".join(f"# {line}".rstrip() for line in configuration.heading.splitlines()),
        data_folder=_path(configuration.data_folder),
        log_destination=log if isinstance(log, str) else f"file {_path(log)}",
        process_user=f"user {user}\n" if user else "",
        listeners="".join(_listener(listener, configuration) for listener in configuration.listeners).rstrip(),
    )


def template(name: str) -> string.Template:
    """Return one of the package's templates."""
    folder = importlib.resources.files("fedmon.broker") / "templates"
    return string.Template((folder / name).read_text(encoding="utf-8"))


def _listener(listener: Listener, configuration: Configuration) -> str:
    common = {"host": listener.host, "port": listener.port, "max_connections": _MAX_CONNECTIONS[listener.role]}
    if listener.role is None:
        return template("listener_open.conf").substitute(common)
    raise BrokerError("no users yet")


def _path(path: pathlib.PurePath) -> str:
    text = str(path)
    if not text.isprintable() or text != text.strip():
        raise BrokerError(
            f"the path {text!r} cannot be written into mosquitto's configuration; choose a plainer folder"
        )
    return text
