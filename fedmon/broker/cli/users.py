"""The shell verbs ``fedmon broker user ...``."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated

import typer

from fedmon.broker import passwords
from fedmon.broker.cli.output import DataDir, Json, emit, refuse_existing, save_secret
from fedmon.broker.folder import BrokerFolder, Reload, default_folder
from fedmon.broker.roles import Role
from fedmon.broker.users import Users
from fedmon.common.errors import SettingsError
from fedmon.common.settings import read_secret

user_app = typer.Typer(
    name="user", help="Add, list and remove the users of a broker.", no_args_is_help=True, rich_markup_mode=None
)

_TOLD = {
    Reload.DONE: "the running broker read its users again",
    Reload.NOT_RUNNING: "no broker of ours runs from this folder; one in a container reads its users on: "
    "docker compose kill -s HUP mosquitto",
    Reload.RESTART_NEEDED: "the running broker was started without users and is still open: restart it now",
}


@user_app.command("add")
def add_user(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="User name; it is the party's id: node id or researcher id.")
    ],
    role: Annotated[Role, typer.Option(help="What the user is, and so what it may write and hear.")],
    password_file: Annotated[
        pathlib.Path | None,
        typer.Option(help="File that holds the password on one line (mode 0600); '-' reads it from standard input."),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask for the password on the terminal.")] = False,
    save: Annotated[
        pathlib.Path | None, typer.Option(help="Write the generated password to this new file instead of printing it.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give a user that is there a new password.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Add a user. Without --password-file and --ask a password is generated and printed once.

    A broker that runs from this folder knows the user at once. Exit codes: 0 added, 1 failed, 2 name or password not
    usable, 4 name taken.
    """
    if (password_file is not None) + ask + (save is not None) > 1:
        raise SettingsError("--password-file, --ask and --save exclude each other; give one of them")
    folder = BrokerFolder(data_dir or default_folder())
    given = _given_password(password_file, ask=ask)
    password = given or passwords.generate()
    refuse_existing(save)
    Users(folder).add(name, role, password, replace=replace)
    if save is not None:
        save_secret(save, password)
    reload = folder.reload_running()
    printed = None if given or save else password
    emit(
        {
            "user": name,
            "role": role.value,
            "password": printed,
            "password_file": str(save) if save else None,
            "reload": reload.value,
            "data_dir": str(folder.path),
        },
        "\n".join(
            [
                f"{role.value} {name} is a user of the broker in {folder.path}",
                *([f"password, shown this once: {printed}"] if printed else []),
                *([f"its password is in {save}"] if save else []),
                _TOLD[reload],
            ]
        ),
        as_json=as_json,
    )


@user_app.command("list")
def list_users(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the users. Exit codes: 0 listed (also when there are none), 1 failed."""
    folder = BrokerFolder(data_dir or default_folder())
    users = Users(folder).all()
    emit(
        {"users": [{"user": user.name, "role": user.role.value} for user in users], "data_dir": str(folder.path)},
        "\n".join(f"{user.role.value:12}{user.name}" for user in users)
        or f"no users in {folder.path}; next: fedmon broker user add NAME --role node",
        as_json=as_json,
    )


@user_app.command("remove")
def remove_user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Remove a user; a broker that runs from this folder disconnects it.

    Exit codes: 0 removed, 1 failed, 3 no such user.
    """
    folder = BrokerFolder(data_dir or default_folder())
    role = Users(folder).remove(name)
    reload = folder.reload_running()
    emit(
        {"user": name, "role": role.value, "reload": reload.value, "data_dir": str(folder.path)},
        f"{role.value} {name} is removed\n{_TOLD[reload]}",
        as_json=as_json,
    )


def _given_password(password_file: pathlib.Path | None, *, ask: bool) -> str | None:
    if ask:
        if not sys.stdin.isatty():
            raise SettingsError("--ask needs a terminal; use --password-file, where '-' is standard input")
        return passwords.checked(
            typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True), source="the terminal"
        )
    if password_file is None:
        return None
    if str(password_file) == "-":
        return passwords.checked(sys.stdin.readline().rstrip("\r\n"), source="standard input")
    return passwords.checked(read_secret(password_file, what="password file"), source=str(password_file))
