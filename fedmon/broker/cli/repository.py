"""The shell verbs ``fedmon broker repository ...``."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fedmon.broker import passwords
from fedmon.broker.cli.output import Json, emit
from fedmon.broker.errors import EngineMissingError, UnsafeListenerError
from fedmon.broker.file_store import Limits
from fedmon.broker.folder import BrokerFolder, default_folder
from fedmon.broker.ports import is_loopback
from fedmon.common.errors import SettingsError
from fedmon.common.settings import read_secret

repository_app = typer.Typer(
    name="repository", help="Keep files that are too large for a message.", no_args_is_help=True, rich_markup_mode=None
)


@repository_app.command("start")
def start_repository(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8890,
    data_dir: Annotated[
        pathlib.Path | None, typer.Option(help="Folder of the files; default: one in your home.")
    ] = None,
    token_file: Annotated[
        pathlib.Path | None,
        typer.Option(help="File with the token that uploads need (mode 0600); made when it is not there."),
    ] = None,
    open_uploads: Annotated[
        bool, typer.Option("--open-uploads", help="Let every process of this machine upload; loopback only.")
    ] = False,
    certificate: Annotated[pathlib.Path | None, typer.Option(help="TLS certificate, with its chain.")] = None,
    key: Annotated[pathlib.Path | None, typer.Option(help="Key of the certificate.")] = None,
    public_url: Annotated[
        str | None, typer.Option(help="Address that goes into the URLs of files; default: where it listens.")
    ] = None,
    max_file_mib: Annotated[int, typer.Option(min=1, max=1024, help="Largest file, in MiB.")] = 16,
    max_total_mib: Annotated[int, typer.Option(min=1, help="All files together, in MiB.")] = 1024,
    keep_days: Annotated[float, typer.Option(min=0.001, help="Days that a file is kept after its last upload.")] = 7.0,
    as_json: Json = False,
) -> None:
    """Serve the file repository until Ctrl-C or SIGTERM.

    Exit codes: 0 stopped as asked, 1 failed, 2 wrong use, 3 not installed, 4 port in use, or open to the network
    without a token or TLS.
    """
    if (certificate is None) != (key is None):
        raise SettingsError("--certificate and --key go together; give both or none")
    if not is_loopback(host) and (open_uploads or certificate is None):
        raise UnsafeListenerError(
            f"{host} can be reached from the network: give --certificate and --key, and no --open-uploads, or listen "
            f"on 127.0.0.1"
        )
    try:
        from fedmon.broker.repository_server import serve
    except ImportError as error:
        raise EngineMissingError(f"{error}: pip install 'fedmon[broker]'") from None
    folder = data_dir or default_folder() / "files"
    token_path = token_file or folder.parent / "secrets" / "repository-token"
    token = None if open_uploads else _token(token_path)

    def ready(url: str) -> None:
        emit(
            {"url": url, "upload_url": f"{url}/upload/", "token_file": str(token_path) if token else None},
            "\n".join(
                [
                    f"file repository on {url}, files in {folder}",
                    f"  uploads need the token in {token_path}"
                    if token
                    else "  every process of this machine may upload (--open-uploads)",
                    f'next: in researcher.toml, [repository] url = "{url}" and token_file = "..."',
                    f'      in node.toml the same, to send, and allowed_urls = ["{url}"], to fetch',
                    "Ctrl-C stops.",
                ]
            ),
            as_json=as_json,
        )

    serve(
        host=host,
        port=port,
        folder=folder,
        limits=Limits(
            max_file_bytes=max_file_mib * 2**20, max_total_bytes=max_total_mib * 2**20, keep_s=keep_days * 86_400
        ),
        token=token,
        public_url=public_url,
        certificate=certificate,
        key=key,
        ready=ready,
    )


def _token(path: pathlib.Path) -> str:
    if not path.exists():
        folder = BrokerFolder(path.parent)
        folder.make()
        folder.replace(path.name, passwords.generate() + "\n")
    return read_secret(path, what="token file")
