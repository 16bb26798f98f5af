"""The shell verbs ``fedmon broker ...``."""

from __future__ import annotations

import contextlib
import json
import pathlib
import queue
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from fedmon.broker.configuration import Access, production_files, revoking, write_production
from fedmon.broker.engine import BrokerEngine, EngineName, choose_engine
from fedmon.broker.file_store import StoreLimits
from fedmon.broker.folder import BrokerFolder, Reload, default_folder
from fedmon.broker.ports import BrokerStartError, is_loopback
from fedmon.broker.users import TOKENS_FILE, Role, Tokens, Users, checked_password, generated_password
from fedmon.common.errors import ConflictError, NotFoundError, SettingsError
from fedmon.common.options import JsonOption
from fedmon.common.settings.broker import read_secret


def _group(name: str, summary: str) -> typer.Typer:
    return typer.Typer(name=name, help=summary, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


app = _group("broker", "Run a broker, keep its users, and run the file repository.")
user_app = _group("user", "Add, list and remove the users of a broker.")
config_app = _group("config", "Show or write the files of a broker in production.")
repository_app = _group("repository", "Keep files that are too large for a message.")
token_app = _group("token", "Add, list and remove the tokens with which parties upload.")

DataDir = Annotated[
    pathlib.Path | None,
    typer.Option(help="Folder of the broker's users, access lists, certificates and data; default: one in your home."),
]
ClientCertificates = Annotated[
    bool,
    typer.Option(
        "--client-certificates",
        help="Nodes and researchers log in with certificates of certificates/<role>s-ca.crt instead of passwords.",
    ),
]


def _emit(document: dict[str, Any], *lines: str, as_json: bool) -> None:
    typer.echo(json.dumps(document) if as_json else "\n".join(lines))


# --- fedmon broker start ----------------------------------------------------------------------------------------------


@app.command()
def start(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every address, and then users are needed.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65536 - len(Role),
            help="Port to listen on; 0 picks a free one. With users: nodes on this port, researchers, "
            "monitors, admins and jobs on the four above it.",
        ),
    ] = 1883,
    data_dir: DataDir = None,
    engine: Annotated[
        EngineName, typer.Option(help="mosquitto, embedded, or auto: mosquitto when it is installed.")
    ] = "auto",
    client_certificates: ClientCertificates = False,
    print_url: Annotated[
        bool, typer.Option("--print-url", help="Print the address for nodes and nothing else.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    It has users when `fedmon broker user add` made some in its folder. With users it has TLS when
    certificates/broker.crt and broker.key lie there. SIGHUP makes it read users and certificates again.
    """
    folder = BrokerFolder(data_dir or default_folder())
    folder.make()
    access = None
    if client_certificates or Users(folder).all():
        tls = client_certificates or any((folder.path / "certificates").glob("broker.*"))
        access = Access(tls=tls, client_certificates=client_certificates, revoking=revoking(folder.path))
    broker = choose_engine(engine)(host=host, port=port, folder=folder.path, access=access)
    # Taken one by one: the start and the end of the broker are not cut short.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(each, lambda number, _frame: signals.put(number))
    had_terminal = sys.stdin.isatty()
    with folder.running(has_users=broker.has_users), broker:
        _announce(broker, folder, print_url=print_url, as_json=as_json)
        while broker.alive():
            number = signals.get()
            terminal_closed = number == signal.SIGHUP and had_terminal and not sys.stdin.isatty()
            if number in (signal.SIGTERM, signal.SIGINT) or terminal_closed:
                return
            if number == signal.SIGHUP:
                broker.reload()
    raise BrokerStartError(f"the {broker.name} broker ended by itself; its log is {broker.log_file}")


def _announce(broker: BrokerEngine, folder: BrokerFolder, *, print_url: bool, as_json: bool) -> None:
    if print_url:
        print(broker.url, flush=True)
        return
    warnings, following = [], folder.command("user add NAME --role ROLE")
    if not broker.has_users:
        warnings.append("no users: every process of this machine may connect under any name")
        following = f"fedmon node init --broker {broker.url}"
    elif not broker.has_tls and not is_loopback(broker.host):
        warnings.append(
            "no TLS: passwords and messages can be read on their way; put broker.crt and broker.key into certificates"
        )
    urls = {role: broker.url_for(role) for role in Role}
    _emit(
        {
            "engine": broker.name,
            "url": broker.url,
            "urls": {role.value: url for role, url in urls.items()},
            "pid": broker.pid,
            "users": broker.has_users,
            "tls": broker.has_tls,
            "limits": broker.limits,
            "data_dir": str(folder.path),
            "log_file": str(broker.log_file),
            "warnings": warnings,
        },
        f"{broker.name} broker (process {broker.pid}): {broker.limits}",
        *(
            [f"  {role.file_name + ':':13}{url}" for role, url in urls.items()]
            if broker.has_users
            else [f"  {broker.url}"]
        ),
        *(f"  {warning}" for warning in warnings),
        f"  users, data and log in {folder.path}",
        f"next: {following}",
        "Ctrl-C stops.",
        as_json=as_json,
    )


# --- fedmon broker user -----------------------------------------------------------------------------------------------

_RELOADED = {
    Reload.DONE: "the running broker read its users again",
    Reload.NOT_RUNNING: "no `fedmon broker start` runs here from this folder; another mosquitto reads its users at "
    "SIGHUP: docker compose kill -s HUP mosquitto",
    Reload.RESTART_NEEDED: "the running broker was started without users and is still open: restart it now",
}


@user_app.command("add")
def add_user(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="User name; it is the party's id: node id or researcher id.")
    ],
    role: Annotated[Role, typer.Option(help="The user's role, which sets its rights to write and read.")],
    password_file: Annotated[
        pathlib.Path | None,
        typer.Option(help="File that holds the password on one line (mode 0600); '-' reads it from standard input."),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask for the password on the terminal.")] = False,
    save: Annotated[
        pathlib.Path | None, typer.Option(help="Write the generated password to this new file instead of printing it.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give an existing user a new password.")] = False,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Add a user. Without --password-file and --ask a password is generated and printed once.

    A broker that runs from this folder knows the user at once.
    """
    if (password_file is not None) + ask + (save is not None) > 1:
        raise SettingsError("--password-file, --ask and --save exclude each other; give one of them")
    folder = BrokerFolder(data_dir or default_folder())
    given = _given_password(password_file, ask=ask)
    password = given or generated_password()
    with _saved(folder, save, password):
        Users(folder).add(name, role, password, replace=replace)
    reload = folder.reload_running()
    printed = None if given or save else password
    _emit(
        {
            "user": name,
            "role": role.value,
            "password": printed,
            "password_file": str(save) if save else None,
            "reload": reload.value,
            "data_dir": str(folder.path),
        },
        f"{role.value} {name} is a user of the broker in {folder.path}",
        *([f"password, shown this once: {printed}"] if printed else []),
        *([f"its password is in {save}"] if save else []),
        _RELOADED[reload],
        as_json=as_json,
    )


@user_app.command("list")
def list_users(data_dir: DataDir = None, as_json: JsonOption = False) -> None:
    """List the users."""
    folder = BrokerFolder(data_dir or default_folder())
    users = Users(folder).all()
    none = f"no users in {folder.path}; next: {folder.command('user add NAME --role node')}"
    _emit(
        {"users": [{"user": name, "role": role.value} for name, role in users], "data_dir": str(folder.path)},
        *([f"{role.value:12}{name}" for name, role in users] or [none]),
        as_json=as_json,
    )


@user_app.command("remove")
def remove_user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a user; a broker that runs from this folder disconnects it."""
    folder = BrokerFolder(data_dir or default_folder())
    role = Users(folder).remove(name)
    reload = folder.reload_running()
    _emit(
        {"user": name, "role": role.value, "reload": reload.value, "data_dir": str(folder.path)},
        f"{role.value} {name} is removed",
        _RELOADED[reload],
        as_json=as_json,
    )


def _given_password(password_file: pathlib.Path | None, *, ask: bool) -> str | None:
    if ask:
        if not sys.stdin.isatty():
            raise SettingsError("--ask needs a terminal; use --password-file, where '-' is standard input")
        typed = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return checked_password(typed, source="the terminal")
    if password_file is None:
        return None
    if str(password_file) == "-":
        return checked_password(sys.stdin.readline().rstrip("\r\n"), source="standard input")
    return checked_password(read_secret(password_file, what="password file"), source=str(password_file))


@contextlib.contextmanager
def _saved(folder: BrokerFolder, save: pathlib.Path | None, secret: str) -> Iterator[None]:
    """Write a secret to a new file, if one is asked for, that its owner alone can read; if the block fails, it goes."""
    with contextlib.ExitStack() as undo:
        if save is not None:
            folder.make()  # the file may lie there
            try:
                save.touch(mode=0o600, exist_ok=False)
                undo.callback(save.unlink, missing_ok=True)
                save.write_text(secret + "\n", encoding="utf-8")
            except OSError as error:
                raise SettingsError(f"cannot write {save}: {error.strerror}; choose a new file for --save") from None
        yield
        undo.pop_all()


# --- fedmon broker config ---------------------------------------------------------------------------------------------

MaxPacket = Annotated[
    int,
    typer.Option(
        min=128, max=262_144, help="Largest packet, in KiB; the wire fedbiomed4 may need 1024, fedmon needs 128."
    ),
]


@config_app.command("show")
def show_config(
    name: Annotated[
        str | None, typer.Argument(metavar="FILE", help="One file, such as mosquitto.conf or acl/nodes; default: all.")
    ] = None,
    client_certificates: ClientCertificates = False,
    max_packet_kib: MaxPacket = 256,
    as_json: JsonOption = False,
) -> None:
    """Print the files of a broker in production."""
    files = production_files(client_certificates=client_certificates, max_packet_bytes=max_packet_kib * 1024)
    if name is not None and name not in files:
        raise NotFoundError(f"file {name!r} not found; the files are {', '.join(sorted(files))}")
    files = {name: files[name]} if name else files
    text = files[name] if name else "\n".join(f"=== {path} ===\n{content}" for path, content in files.items())
    _emit({"files": files}, text.rstrip("\n"), as_json=as_json)


@config_app.command("write")
def write_config(
    folder: Annotated[pathlib.Path, typer.Argument(metavar="FOLDER", help="Folder to write them to, such as broker/.")],
    client_certificates: ClientCertificates = False,
    max_packet_kib: MaxPacket = 256,
    as_json: JsonOption = False,
) -> None:
    """Write the files of a broker in production into a folder.

    Only you can read them. Users and certificates that lie there stay.
    """
    rendered = production_files(
        client_certificates=client_certificates, revoking=revoking(folder), max_packet_bytes=max_packet_kib * 1024
    )
    files = write_production(BrokerFolder(folder), rendered)
    _emit(
        {"folder": str(folder), "files": files},
        *(f"{folder / name}" for name in files),
        f"next: read {folder / 'README.md'}",
        as_json=as_json,
    )


# --- fedmon broker repository -----------------------------------------------------------------------------------------


@token_app.command("add")
def add_token(
    party: Annotated[str, typer.Argument(metavar="NAME", help="The uploader: a researcher id or a node id.")],
    save: Annotated[
        pathlib.Path | None, typer.Option(help="Write the token to this new file instead of printing it.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give a party that has a token a new one.")] = False,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token for a party; its uploads count against its quota.

    A running repository knows the token at once.
    """
    folder = BrokerFolder(data_dir or default_folder())
    token = generated_password()
    with _saved(folder, save, token):
        Tokens(folder).add(party, token, replace=replace)
    _emit(
        {
            "party": party,
            "token": None if save else token,
            "token_file": str(save) if save else None,
            "data_dir": str(folder.path),
        },
        f"{party} may upload to the repository of {folder.path}",
        f"its token is in {save}" if save else f"token, shown this once: {token}",
        as_json=as_json,
    )


@token_app.command("list")
def list_tokens(data_dir: DataDir = None, as_json: JsonOption = False) -> None:
    """List the parties that have a token."""
    folder = BrokerFolder(data_dir or default_folder())
    parties = Tokens(folder).parties()
    none = f"no tokens in {folder.path}; next: {folder.command('repository token add NAME')}"
    _emit({"parties": parties, "data_dir": str(folder.path)}, *(parties or [none]), as_json=as_json)


@token_app.command("remove")
def remove_token(
    party: Annotated[str, typer.Argument(metavar="NAME", help="The token's party: a researcher id or a node id.")],
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a party's token; its files stay until they expire."""
    folder = BrokerFolder(data_dir or default_folder())
    Tokens(folder).remove(party)
    _emit(
        {"party": party, "data_dir": str(folder.path)},
        f"{party} may no longer upload to the repository of {folder.path}",
        as_json=as_json,
    )


FilesDir = Annotated[
    pathlib.Path | None, typer.Option(help="Folder of the files, beside the folder secrets; default: one in your home.")
]
TokenFile = Annotated[
    pathlib.Path | None,
    typer.Option(
        help="File with one token that all share (mode 0600); made when it is missing and no party has a token."
    ),
]
OpenUploads = Annotated[
    bool, typer.Option("--open-uploads", help="Let every process of this machine upload; loopback only.")
]
PublicUrl = Annotated[str | None, typer.Option(help="Address in the URLs of files (default: where it listens).")]


@repository_app.command("start")
def start_repository(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8890,
    data_dir: FilesDir = None,
    token_file: TokenFile = None,
    open_uploads: OpenUploads = False,
    certificate: Annotated[pathlib.Path | None, typer.Option(help="TLS certificate, with its chain.")] = None,
    key: Annotated[pathlib.Path | None, typer.Option(help="Key of the certificate.")] = None,
    public_url: PublicUrl = None,
    max_file_mib: Annotated[int, typer.Option(min=1, max=1024, help="Largest file, in MiB.")] = 16,
    max_party_mib: Annotated[int, typer.Option(min=1, help="All files of one party with a token, in MiB.")] = 256,
    max_total_mib: Annotated[int, typer.Option(min=1, help="All files together, in MiB.")] = 1024,
    keep_days: Annotated[float, typer.Option(min=0.001, help="Days that a file is kept after its last upload.")] = 7.0,
    as_json: JsonOption = False,
) -> None:
    """Serve the file repository until Ctrl-C or SIGTERM.

    Uploads need a token: that of a party (see `fedmon broker repository token`), or one that all share.
    """
    if (certificate is None) != (key is None):
        raise SettingsError("--certificate and --key go together; give both or none")
    if not is_loopback(host) and (open_uploads or certificate is None):
        raise ConflictError(
            f"{host} can be reached from the network: give --certificate and --key, and no --open-uploads, or listen "
            f"on 127.0.0.1"
        )
    try:
        from fedmon.broker.repository import serve
    except ImportError as error:
        raise NotFoundError(f"{error}: install fedmon with its extra [broker], as its README says") from None
    folder = data_dir or default_folder() / "files"
    broker = BrokerFolder(folder.parent)
    token_path = token_file or broker.path / "secrets" / "repository-token"
    # Without the option, the empty file of `config write` means that parties will have tokens.
    has_parties = (broker.path / TOKENS_FILE).exists() if token_file is None else bool(Tokens(broker).parties())
    shared = not open_uploads and (token_path.exists() or not has_parties)
    tokens = None if open_uploads else Tokens(broker, shared=_shared_token(token_path) if shared else None)

    serve(
        host=host,
        port=port,
        folder=folder,
        limits=StoreLimits(
            max_file_bytes=max_file_mib * 2**20,
            max_party_bytes=max_party_mib * 2**20,
            max_total_bytes=max_total_mib * 2**20,
            keep_s=keep_days * 86_400,
        ),
        tokens=tokens,
        public_url=public_url,
        certificate=certificate,
        key=key,
        ready=lambda url: _announce_repository(url, folder, token_path if shared else None, tokens, as_json=as_json),
    )


def _announce_repository(
    url: str, folder: pathlib.Path, token_path: pathlib.Path | None, tokens: Tokens | None, *, as_json: bool
) -> None:
    if tokens is None:
        uploads, more = "every process of this machine may upload (--open-uploads)", ""
    else:
        more = ' and token_file = "..."'
        shared = f"the token in {token_path}, or " if token_path else ""
        add = BrokerFolder(folder.parent).command("repository token add NAME")
        uploads = f"uploads need {shared}the token of a party: {add}"
    _emit(
        {"url": url, "upload_url": f"{url}/upload/", "token_file": str(token_path) if token_path else None},
        f"file repository on {url}, files in {folder}",
        f"  {uploads}",
        f'next: in researcher.toml, [repository] url = "{url}"{more}',
        f'      in node.toml the same, to send, and allowed_urls = ["{url}"], to fetch',
        "Ctrl-C stops.",
        as_json=as_json,
    )


def _shared_token(path: pathlib.Path) -> str:
    if not path.exists():
        BrokerFolder(path.parent).replace(path.name, generated_password() + "\n")
    return read_secret(path, what="token file")


app.add_typer(user_app)
app.add_typer(config_app)
app.add_typer(repository_app)
repository_app.add_typer(token_app)
