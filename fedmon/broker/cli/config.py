"""The shell verbs ``fedmon broker config ...``."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fedmon.broker.cli.output import Json, emit
from fedmon.broker.errors import UnknownFileError
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.production import production_files, write_production

config_app = typer.Typer(
    name="config",
    help="The files that run a broker in production: compose, mosquitto and access lists.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
ClientCertificates = Annotated[
    bool,
    typer.Option("--client-certificates", help="Nodes and researchers log in with certificates instead of passwords."),
]
MaxPacket = Annotated[
    int,
    typer.Option(
        min=128, max=262_144, help="Largest packet, in KiB; the wire fedbiomed4 may need 1024, fedmon needs 128."
    ),
]


@config_app.command("show")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="FILE", help="One file, such as mosquitto.conf or acl/nodes; default: all.")
    ] = None,
    client_certificates: ClientCertificates = False,
    max_packet_kib: MaxPacket = 256,
    as_json: Json = False,
) -> None:
    """Print the configuration of mosquitto, its access lists and the compose file as this version renders them.

    Exit codes: 0 shown, 3 no such file.
    """
    files = production_files(client_certificates=client_certificates, max_packet_bytes=max_packet_kib * 1024)
    if name is not None:
        if name not in files:
            raise UnknownFileError(f"there is no file {name!r}; there are {', '.join(sorted(files))}")
        files = {name: files[name]}
    text = files[name] if name else "\n".join(f"=== {path} ===\n{content}" for path, content in files.items())
    emit({"files": files}, text.rstrip("\n"), as_json=as_json)


@config_app.command("write")
def write(
    folder: Annotated[pathlib.Path, typer.Argument(metavar="FOLDER", help="Folder to write them to, such as broker/.")],
    client_certificates: ClientCertificates = False,
    max_packet_kib: MaxPacket = 256,
    as_json: Json = False,
) -> None:
    """Write these files into a folder, readable by you only; users and certificates that lie there stay.

    Exit codes: 0 written, 1 failed.
    """
    rendered = production_files(client_certificates=client_certificates, max_packet_bytes=max_packet_kib * 1024)
    files = write_production(BrokerFolder(folder), rendered)
    emit(
        {"folder": str(folder), "files": files},
        "\n".join([*(f"{folder / name}" for name in files), f"next: read {folder / 'README.md'}"]),
        as_json=as_json,
    )
