"""The shell verbs ``fedmon broker repository ...``."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fedmon.broker import passwords
from fedmon.broker.cli.output import DataDir, Json, emit, refuse_existing, save_secret
from fedmon.broker.errors import EngineMissingError, UnsafeListenerError
from fedmon.broker.file_store import Limits
from fedmon.broker.folder import BrokerFolder, default_folder
from fedmon.broker.ports import is_loopback
from fedmon.broker.tokens import TOKENS_FILE, Tokens
from fedmon.common.errors import SettingsError
from fedmon.common.settings import read_secret

repository_app = typer.Typer(
    name="repository", help="Keep files that are too large for a message.", no_args_is_help=True, rich_markup_mode=None
)
token_app = typer.Typer(
    name="token",
    help="Add, list and remove the tokens with which parties upload.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
repository_app.add_typer(token_app)


@token_app.command("add")
def add_token(
    party: Annotated[str, typer.Argument(metavar="NAME", help="Who uploads: a researcher id or a node id.")],
    save: Annotated[
        pathlib.Path | None, typer.Option(help="Write the token to this new file instead of printing it.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give a party that has a token a new one.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make a token for a party; what it uploads counts against its own quota.

    A running repository knows the token at once. Exit codes: 0 added, 1 failed, 2 name not usable, 4 has a token.
    """
    folder = BrokerFolder(data_dir or default_folder())
    refuse_existing(save)
    token = Tokens(folder).add(party, replace=replace)
    if save is not None:
        save_secret(save, token)
    emit(
        {
            "party": party,
            "token": None if save else token,
            "token_file": str(save) if save else None,
            "data_dir": str(folder.path),
        },
        f"{party} may upload to the repository of {folder.path}\n"
        + (f"its token is in {save}" if save else f"token, shown this once: {token}"),
        as_json=as_json,
    )


@token_app.command("list")
def list_tokens(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the parties that have a token. Exit codes: 0 listed (also when there are none), 1 failed."""
    folder = BrokerFolder(data_dir or default_folder())
    parties = Tokens(folder).parties()
    emit(
        {"parties": parties, "data_dir": str(folder.path)},
        "\n".join(parties) or f"no tokens in {folder.path}; next: fedmon broker repository token add NAME",
        as_json=as_json,
    )


@token_app.command("remove")
def remove_token(
    party: Annotated[str, typer.Argument(metavar="NAME", help="Whose token.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Remove a party's token; its files stay until they expire.

    Exit codes: 0 removed, 1 failed, 3 has no token.
    """
    folder = BrokerFolder(data_dir or default_folder())
    Tokens(folder).remove(party)
    emit(
        {"party": party, "data_dir": str(folder.path)},
        f"{party} may no longer upload to the repository of {folder.path}",
        as_json=as_json,
    )


@repository_app.command("start")
def start_repository(  # noqa: PLR0917 - each is an option, and none is given by its place
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8890,
    data_dir: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder of the files, beside the folder secrets; default: one in your home."),
    ] = None,
    token_file: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="File with one token that all share (mode 0600); made when it is missing and no party has a token."
        ),
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
    max_party_mib: Annotated[int, typer.Option(min=1, help="All files of one party with a token, in MiB.")] = 256,
    max_total_mib: Annotated[int, typer.Option(min=1, help="All files together, in MiB.")] = 1024,
    keep_days: Annotated[float, typer.Option(min=0.001, help="Days that a file is kept after its last upload.")] = 7.0,
    as_json: Json = False,
) -> None:
    """Serve the file repository until Ctrl-C or SIGTERM.

    Uploads need a token: that of a party (see `fedmon broker repository token`), or one that all share.

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
    broker = BrokerFolder(folder.parent)
    token_path = token_file or broker.path / "secrets" / "repository-token"
    shared = not open_uploads and (token_path.exists() or not (broker.path / TOKENS_FILE).exists())
    tokens = None if open_uploads else Tokens(broker, shared=_token(token_path) if shared else None)

    def ready(url: str) -> None:
        emit(
            {"url": url, "upload_url": f"{url}/upload/", "token_file": str(token_path) if shared else None},
            "\n".join(
                [
                    f"file repository on {url}, files in {folder}",
                    "  every process of this machine may upload (--open-uploads)"
                    if open_uploads
                    else f"  uploads need {f'the token in {token_path}, or ' if shared else ''}the token of a party: "
                    "fedmon broker repository token add NAME",
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
            max_file_bytes=max_file_mib * 2**20,
            max_party_bytes=max_party_mib * 2**20,
            max_total_bytes=max_total_mib * 2**20,
            keep_s=keep_days * 86_400,
        ),
        tokens=tokens,
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
