"""Options that every verb has, and how a verb has a command run: by the node's daemon, or here while it is stopped."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.common.clock import Deadline
from fedmon.common.errors import FolderInUseError, NoAnswerError
from fedmon.node.folder import DAEMON, NodeFolder
from fedmon.node.owner.control import ControlClient, DaemonNotRunningError

EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong use or settings, 3 not found, 4 refused or in conflict, 5 no connection, "
    '6 no answer in time. With --json exactly one JSON document is printed, an error as {"error": {...}}.'
)
Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir", "-d", envvar="FEDMON_NODE_DIR", help="The node's folder; without it the one in your data folder."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

REACH_WITHIN_S = 4.0
CALL_TIMEOUT_S = 30.0
_LOCK_ATTEMPT_S = 0.25


def group(name: str, purpose: str, **options: Any) -> typer.Typer:
    """Return an empty group of verbs; without a verb it prints its help, unless ``options`` say otherwise."""
    return typer.Typer(**{"name": name, "help": purpose, "no_args_is_help": True, "rich_markup_mode": None, **options})


def default_folder() -> Path:
    """Return the folder of a user's only node."""
    from platformdirs import user_data_path

    return user_data_path("fedmon", appauthor=False) / "node"


def opened(path: Path | None) -> NodeFolder:
    """Open the folder that ``--dir``, FEDMON_NODE_DIR or nothing names. Raises NotFoundError and StorageError."""
    return NodeFolder.open(path or default_folder())


def login() -> str:
    """Return the name of the user at the shell, for the audit."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def call(folder: NodeFolder, purpose: str, command: str, **args: Any) -> dict[str, Any]:
    """Have a command of the owner run, by the daemon or here, and return its result.

    Another shell that works in the folder of a stopped node is waited for. Raises what the command raises,
    FolderInUseError naming the holder of the lock, and NoAnswerError if a daemon is there but takes no calls.
    """
    deadline = Deadline(REACH_WITHIN_S)
    retry = threading.Event()
    while True:
        client = connected(folder)
        if client is not None:
            with client:
                return client.call(command, **args)
        try:
            with folder.hold(purpose, timeout_s=_LOCK_ATTEMPT_S):
                return _run_here(folder, command, args)
        except FolderInUseError:
            if deadline.passed():
                raise _unreachable(folder) from None
        retry.wait(min(_LOCK_ATTEMPT_S, deadline.left_s()))


def call_daemon(folder: NodeFolder, why: str, command: str, **args: Any) -> dict[str, Any]:
    """Have the daemon run a command, and return its result.

    Raises what the command raises, and DaemonNotRunningError, which tells ``why`` the node must run.
    """
    client = connected(folder)
    if client is None:
        raise DaemonNotRunningError(
            f"the node of {folder.path} is not running, {why}: start it with 'fedmon node start'"
        )
    with client:
        return client.call(command, **args)


def connected(folder: NodeFolder, *, timeout_s: float = CALL_TIMEOUT_S) -> ControlClient | None:
    """Return a connection to the folder's daemon, or None when no daemon listens."""
    try:
        return ControlClient(folder.path, timeout_s=timeout_s)
    except DaemonNotRunningError:
        return None


def _unreachable(folder: NodeFolder) -> Exception:
    holder = folder.holder()
    if holder is not None and holder.purpose == DAEMON:
        return NoAnswerError(
            f"the daemon of {folder.path} (pid {holder.pid}) is there but took no call for {REACH_WITHIN_S:g} s: "
            "it is starting or stopping; try again, or look at its log"
        )
    return FolderInUseError(f"{folder.path} is in use by {holder or 'another process'}: wait until it is done")


def _run_here(folder: NodeFolder, command: str, args: dict[str, Any]) -> dict[str, Any]:
    """Run a command on the registers of a stopped node; what is decided waits in the outbox for the daemon."""
    from fedmon.common.settings.sources import load_node
    from fedmon.node.folder import read_boot
    from fedmon.node.owner.commands import OwnerCommands
    from fedmon.node.registers.state import Registers

    settings, boot = load_node(folder.path, os.environ), read_boot(folder.boot_file)
    with Registers(folder, settings, boot=boot) as registers:
        return OwnerCommands(folder, settings, registers, environ=os.environ, boot=boot).run(command, args)
