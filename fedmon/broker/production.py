"""The files that run the broker and the file repository in production, as they lie in the folder ``broker/``."""

from __future__ import annotations

from fedmon.broker.configuration import (
    MAX_PACKET_BYTES,
    Access,
    Configuration,
    Listener,
    raw_template,
    render_acl,
    render_mosquitto,
)
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.roles import Role
from fedmon.broker.tokens import TOKENS_FILE

FIRST_PORT = 8883
REPOSITORY_PORT = 8890
PRIVATE_FOLDERS = ("certificates", "files", "passwords", "secrets")
"""What an operator fills; made empty and private beside the files."""

_HEADING = "Rendered by `fedmon broker config write`; for mosquitto 2.0.11 and later."


def production_files(*, client_certificates: bool = False, max_packet_bytes: int = MAX_PACKET_BYTES) -> dict[str, str]:
    """Return the text of every file by its path inside the folder."""

    def mosquitto(admin_host: str) -> str:
        return render_mosquitto(
            Configuration(
                heading=_HEADING,
                listeners=tuple(
                    Listener(
                        host=admin_host if role is Role.ADMIN else "", port=FIRST_PORT + role.port_offset, role=role
                    )
                    for role in Role
                ),
                access=Access(tls=True, client_certificates=client_certificates),
                # mosquitto 2.0 holds back standard output by the page when it goes to no terminal.
                log_destination="stderr",
                max_packet_bytes=max_packet_bytes,
            )
        )

    return {
        "README.md": raw_template("README.md"),
        "compose.yaml": raw_template("compose.yaml"),
        "mosquitto.conf": mosquitto("127.0.0.1"),
        # A published port does not reach the loopback address of a container: there compose.yaml publishes it on ours.
        "mosquitto-container.conf": mosquitto(""),
        "nftables.conf": raw_template("nftables.conf"),
        **{f"acl/{role.file_name}": render_acl(role) for role in Role},
        "image/Dockerfile": raw_template("image/Dockerfile"),
        "image/mosquitto.Dockerfile": raw_template("image/mosquitto.Dockerfile"),
        ".gitignore": raw_template("gitignore"),
    }


def write_production(folder: BrokerFolder, files: dict[str, str]) -> list[str]:
    """Write production files into a folder, and return their paths in it; users and certificates that lie there stay.

    Raises StorageError.
    """
    folder.make()
    for name, text in files.items():
        folder.replace(name, text)
    for name in PRIVATE_FOLDERS:
        BrokerFolder(folder.path / name).make()
    for role in Role:
        # mosquitto does not start where one of them is missing, and many a federation has users of few roles.
        if not (folder.path / "passwords" / role.file_name).exists():
            folder.replace(f"passwords/{role.file_name}", "")
    if not (folder.path / TOKENS_FILE).exists():
        # Without it the repository makes a token that all share.
        folder.replace(TOKENS_FILE, "")
    return sorted(files)
