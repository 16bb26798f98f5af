"""The files that run the broker and the file repository in production, as they lie in the folder ``broker/``."""

from __future__ import annotations

from fedmon.broker.configuration import Access, Configuration, Listener, raw_template, render_acl, render_mosquitto
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.roles import Role

FIRST_PORT = 8883
REPOSITORY_PORT = 8890
PRIVATE_FOLDERS = ("certificates", "data", "files", "passwords", "secrets")
"""What an operator fills; made empty and private beside the files."""

_HEADING = "Rendered by `fedmon broker config write`; for mosquitto 2.0.11 and later."


def production_files(*, client_certificates: bool = False) -> dict[str, str]:
    """Return the text of every file by its path inside the folder."""
    return {
        "README.md": raw_template("README.md"),
        "compose.yaml": raw_template("compose.yaml"),
        "mosquitto.conf": render_mosquitto(
            Configuration(
                heading=_HEADING,
                listeners=tuple(Listener(host="", port=FIRST_PORT + role.port_offset, role=role) for role in Role),
                access=Access(tls=True, client_certificates=client_certificates),
                # mosquitto 2.0 holds back standard output by the page when it goes to no terminal.
                log_destination="stderr",
            )
        ),
        **{f"acl/{role.file_name}": render_acl(role) for role in Role},
        "image/Dockerfile": raw_template("image/Dockerfile"),
        ".gitignore": raw_template("gitignore"),
    }


def write_production(folder: BrokerFolder, *, client_certificates: bool = False) -> list[str]:
    """Write every file into a folder, and return their paths in it; users, certificates and data that lie there stay.

    Raises StorageError.
    """
    folder.make()
    files = production_files(client_certificates=client_certificates)
    for name, text in files.items():
        folder.replace(name, text)
    for name in PRIVATE_FOLDERS:
        BrokerFolder(folder.path / name).make()
    for role in Role:
        # mosquitto does not start where one of them is missing, and many a federation has users of few roles.
        if not (folder.path / "passwords" / role.file_name).exists():
            folder.replace(f"passwords/{role.file_name}", "")
    return sorted(files)
