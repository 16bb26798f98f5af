"""The files of a broker, from the package's templates: for production, and for the brokers that we start."""

from __future__ import annotations

import importlib.resources
import pathlib
import re
import string
from collections.abc import Mapping, Sequence

import msgspec

from fedmon.broker.folder import BrokerFolder
from fedmon.broker.users import TOKENS_FILE, Role
from fedmon.common.errors import ConflictError
from fedmon.common.files import storage_errors

FIRST_PORT = 8883
PRIVATE_FOLDERS = ("certificates", "files", "passwords", "secrets")
"""Folders that an operator fills; made empty and private beside the files."""
MAX_PACKET_BYTES = 262_144
"""Largest packet on a broker with users; no message of ours is over 100 KB."""
OPEN_MAX_PACKET_BYTES = 1_048_576
"""Largest packet on a broker without users, where programs of Fed-BioMed may send more than we do."""

_HEADING = "Rendered by `fedmon broker config write`; for mosquitto 2.0.11 and later."
_MAX_CONNECTIONS = {
    None: 20_000,
    Role.NODE: 20_000,
    Role.RESEARCHER: 5000,
    Role.MONITOR: 2000,
    Role.ADMIN: 1000,
    Role.JOB: 20_000,
}
_KEPT_ON_DISK = """
# Presence survives a restart; fedmon relies on no other state of a broker.
persistence true
persistence_location data/
autosave_interval 60"""
_BOUNDED = """
# mosquitto can neither refuse retained messages on a topic nor count the offline sessions of a user: this bounds both.
memory_limit 536870912
# Nothing is kept on disk, so that a restart frees memory; nodes that are up announce themselves again.
persistence false"""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How parties prove who they are, on a broker with users.

    Passwords lie in ``passwords/<role>s`` of the broker's folder. ``tls`` needs ``certificates/broker.crt`` and
    ``broker.key``. With ``client_certificates`` nodes and researchers need a certificate whose common name is their
    id, from an authority in ``certificates/<role>s-ca.crt``, and no password. ``certificates/<role>s.crl`` lists those
    that the authorities of the roles in ``revoking`` have revoked.
    """

    tls: bool = False
    client_certificates: bool = False
    revoking: Sequence[Role] = ()


def revoking(folder: pathlib.Path) -> list[Role]:
    """Return the roles with a list of revoked certificates in a broker's folder."""
    return [role for role in Role if (folder / "certificates" / f"{role.file_name}.crl").exists()]


def render_mosquitto(
    *,
    heading: str,
    listeners: Mapping[Role | None, tuple[int, str]],
    access: Access,
    log_destination: str,
    process_user: str | None = None,
    max_packet_bytes: int | None = None,
) -> str:
    """Return the text of mosquitto.conf; every path is relative to the broker's folder.

    ``listeners`` holds port and host by role, the role None for a listener that is open to all clients; an empty
    host is every address. ``process_user`` is the user that a mosquitto started by root becomes.
    """
    is_open = None in listeners
    return string.Template(template("mosquitto.conf")).substitute(
        heading=f"# {heading}",
        max_packet_bytes=max_packet_bytes or (OPEN_MAX_PACKET_BYTES if is_open else MAX_PACKET_BYTES),
        storage=_KEPT_ON_DISK if is_open else _BOUNDED,
        log_destination=log_destination,
        process_user=f"user {process_user}\n" if process_user else "",
        listeners="".join(
            _listener(role, f"{port} {host}".rstrip(), access) for role, (port, host) in listeners.items()
        ).rstrip(),
    )


def template(name: str) -> str:
    """Return the text of one of the package's templates."""
    return importlib.resources.files("fedmon.broker").joinpath("templates", name).read_text(encoding="utf-8")


def _listener(role: Role | None, address: str, access: Access) -> str:
    if role is None:
        text, identity = "listener_open.conf", ""
    elif access.client_certificates and role in (Role.NODE, Role.RESEARCHER):
        text = "listener.conf"
        identity = (
            f"require_certificate true\nuse_identity_as_username true\ncafile certificates/{role.file_name}-ca.crt"
        )
        if role in access.revoking:
            identity += f"\ncrlfile certificates/{role.file_name}.crl"
    else:
        text, identity = "listener.conf", f"password_file passwords/{role.file_name}"
    rendered = string.Template(template(text)).substitute(
        role=role.value if role else "",
        address=address,
        max_connections=_MAX_CONNECTIONS[role],
        identity=identity,
        tls=template("tls.conf") if access.tls else "",
    )
    return rendered.rstrip() + "\n"


def production_files(
    *,
    client_certificates: bool = False,
    revoking: Sequence[Role] = (),
    max_packet_bytes: int = MAX_PACKET_BYTES,
) -> dict[str, str]:
    """Return the text of every file of a production broker by its path in the broker's folder."""

    def mosquitto(admin_host: str) -> str:
        return render_mosquitto(
            heading=_HEADING,
            listeners={
                role: (FIRST_PORT + role.port_offset, admin_host if role is Role.ADMIN else "") for role in Role
            },
            access=Access(tls=True, client_certificates=client_certificates, revoking=revoking),
            # mosquitto 2.0 holds back standard output by the page when it goes to no terminal.
            log_destination="stderr",
            max_packet_bytes=max_packet_bytes,
        )

    return {
        "README.md": template("README.md"),
        "compose.yaml": template("compose.yaml"),
        "mosquitto.conf": mosquitto("127.0.0.1"),
        # A published port does not reach the loopback address of a container: there compose.yaml publishes it on ours.
        "mosquitto-container.conf": mosquitto(""),
        "nftables.conf": template("nftables.conf"),
        **{f"acl/{role.file_name}": template(f"acl/{role.file_name}") for role in Role},
        "image/Dockerfile": template("image/Dockerfile"),
        "image/mosquitto.Dockerfile": template("image/mosquitto.Dockerfile"),
        ".gitignore": template("gitignore"),
    }


def write_production(folder: BrokerFolder, files: Mapping[str, str]) -> list[str]:
    """Write production files into a folder, and return their paths in it; users and certificates in it stay.

    Raises StorageError, and ConflictError where certificates would be revoked no longer.
    """
    folder.make()
    for name in ("mosquitto.conf", "mosquitto-container.conf"):
        path = folder.path / name
        with storage_errors(path):
            old = path.read_text(errors="replace") if path.exists() else ""
        lines = {" ".join(line.split()) for line in re.findall("^ *crlfile .*", old, re.MULTILINE)}
        for line in lines - set(files[name].splitlines()):
            raise ConflictError(
                f"the new {path} would lack the line {line!r}: give --client-certificates, and rename the list to "
                f"certificates/nodes.crl or certificates/researchers.crl, in the line too; or remove the line"
            )
    for name, text in files.items():
        folder.replace(name, text)
    for name in PRIVATE_FOLDERS:
        BrokerFolder(folder.path / name).make()
    # mosquitto does not start without a role's password file, and many a federation has users of few roles. Without a
    # file of tokens the repository makes a token that all share.
    for name in (*(f"passwords/{role.file_name}" for role in Role), TOKENS_FILE):
        if not (folder.path / name).exists():
            folder.replace(name, "")
    return sorted(files)
