"""Render the configuration of mosquitto from the templates, for production and for the brokers that we start."""

from __future__ import annotations

import importlib.resources
import string

import msgspec

from fedmon.broker.roles import Role

MAX_PACKET_BYTES = 262_144
"""Largest packet on a broker with users; no message of ours is over 100 KB."""
OPEN_MAX_PACKET_BYTES = 1_048_576
"""Largest packet on a broker without users, where programs of Fed-BioMed may send more than we do."""
CERTIFICATE_ROLES = (Role.NODE, Role.RESEARCHER)
"""Roles whose parties may prove themselves with a certificate instead of a password."""

_LIMITS = {
    "max_inflight_messages": 200,
    "max_queued_messages": 10_000,
    "max_queued_bytes": 33_554_432,
    "max_keepalive_s": 300,
}
_MAX_CONNECTIONS = {
    None: 20_000,
    Role.NODE: 20_000,
    Role.RESEARCHER: 5000,
    Role.MONITOR: 2000,
    Role.ADMIN: 1000,
    Role.JOB: 20_000,
}
_KEPT_ON_DISK = """
# Presence survives a restart; nothing else of fedmon relies on what a broker keeps.
persistence true
persistence_location data/
autosave_interval 60"""
_BOUNDED = """
# mosquitto can neither refuse retained messages on a topic nor count the offline sessions of a user: this bounds both.
memory_limit 536870912
# Nothing is kept on disk, so that a restart frees memory; nodes that are up announce themselves again.
persistence false"""


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One address; without a ``role`` it is open to whoever can reach it. An empty ``host`` means every address."""

    host: str
    port: int
    role: Role | None = None


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How parties prove who they are, on a broker with users.

    Passwords lie in ``passwords/<role>s`` of the broker's folder. ``tls`` needs ``certificates/broker.crt`` and
    ``broker.key``. With ``client_certificates`` nodes and researchers need a certificate whose common name is their
    id, from an authority in ``certificates/<role>s-ca.crt``, and no password.
    """

    tls: bool = False
    client_certificates: bool = False


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All that the templates leave open; every path is relative to the broker's folder.

    ``process_user`` is the user that a mosquitto started by root becomes; None leaves it to mosquitto.
    ``max_packet_bytes`` None means the default of a broker with, or without, users.
    """

    heading: str
    listeners: tuple[Listener, ...]
    access: Access = Access()
    log_destination: str
    process_user: str | None = None
    max_packet_bytes: int | None = None


def render_mosquitto(configuration: Configuration) -> str:
    """Return the text of mosquitto.conf."""
    user = configuration.process_user
    is_open = all(listener.role is None for listener in configuration.listeners)
    return template("mosquitto.conf").substitute(
        _LIMITS,
        heading=commented(configuration.heading),
        max_packet_bytes=configuration.max_packet_bytes or (OPEN_MAX_PACKET_BYTES if is_open else MAX_PACKET_BYTES),
        storage=_KEPT_ON_DISK if is_open else _BOUNDED,
        log_destination=configuration.log_destination,
        process_user=f"user {user}\n" if user else "",
        listeners="".join(_listener(listener, configuration.access) for listener in configuration.listeners).rstrip(),
    )


def render_acl(role: Role) -> str:
    """Return the text of a role's access list; nothing in it depends on who the users are."""
    return raw_template(f"acl/{role.file_name}")


def commented(text: str) -> str:
    """Return the text as comment lines."""
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())


def template(name: str) -> string.Template:
    """Return one of the package's templates."""
    return string.Template(raw_template(name))


def raw_template(name: str) -> str:
    """Return the text of one of the package's templates, as it is."""
    return importlib.resources.files("fedmon.broker").joinpath("templates", name).read_text(encoding="utf-8")


def _listener(listener: Listener, access: Access) -> str:
    address = f"{listener.port} {listener.host}".rstrip()
    max_connections = _MAX_CONNECTIONS[listener.role]
    if listener.role is None:
        return template("listener_open.conf").substitute(address=address, max_connections=max_connections)
    role = listener.role.value
    certificates = access.client_certificates and listener.role in CERTIFICATE_ROLES
    text = template("listener.conf").substitute(
        role=role,
        address=address,
        max_connections=max_connections,
        identity=(
            f"require_certificate true\nuse_identity_as_username true\ncafile certificates/{role}s-ca.crt"
            if certificates
            else f"password_file passwords/{role}s"
        ),
        tls=template("tls.conf").substitute() if access.tls else "",
    )
    return text.rstrip() + "\n"
