"""Common to every verb of the owner: ``--dir``, ``--json``, a shell that reaches the node and asks, and its texts."""

from __future__ import annotations

import contextlib
import datetime
import functools
import inspect
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError, FolderInUseError, InvalidInputError
from fedmon.common.options import JsonOption
from fedmon.common.text import UNLIMITED, one_line, table
from fedmon.common.text import ago as since
from fedmon.node.folder import NodeFolder, user_name
from fedmon.node.owner.control import DaemonNotRunningError, call_daemon

Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir", "-d", envvar="FEDMON_NODE_DIR", help="The node's folder (default: the one in your data folder)."
    ),
]
Note = Annotated[str, typer.Option(help="Why, for the researcher.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, not even for a name or a prefix.")]

REACH_WITHIN_S = 30.0
_LOCK_ATTEMPT_S = 0.25
DEFAULT_WIDTH = 80
_GAP = 2


class Shell:
    """One verb at work on a node folder, for a person at a terminal or for a program."""

    def __init__(self, purpose: str, folder: NodeFolder, *, as_json: bool) -> None:
        self.purpose, self.folder, self.as_json = purpose, folder, as_json

    @property
    def is_interactive(self) -> bool:
        """Tell whether a person sits at the terminal."""
        return not self.as_json and sys.stdin.isatty() and sys.stdout.isatty()

    def emit(self, document: Mapping[str, Any], text: Callable[[], str]) -> None:
        """Print one JSON document on one line, or the text about it and the ``--dir`` that commands in it need."""
        if self.as_json:
            print(msgspec.json.encode(document).decode())
            return
        print(shown := text())
        if needs := self.needs(shown):
            self.note(needs)

    def needs(self, shown: str) -> str:
        """Tell which ``--dir`` the commands in a text need; empty if none is missing."""
        option = dir_option(self.folder.path)
        is_missing = "fedmon node" in one_line(shown) and option not in shown
        return f"commands for this node need:{option}" if is_missing else ""

    def show(self, command: str, text: Callable[[dict[str, Any]], str], **args: Any) -> dict[str, Any]:
        """Have a command of the owner run, print its result, and return it."""
        document = self.call(command, **args)
        self.emit(document, lambda: text(document))
        return document

    def note(self, text: str) -> None:
        """Print a note for the reader to standard error, with the ``--dir`` that commands in it need."""
        if not self.as_json:
            needs = self.needs(text)
            print(f"note: {one_line(text)}{needs and '; '}{needs}", file=sys.stderr)  # not folded: it is for copying

    def ask(self, option: str, question: str, default: str | None = None) -> str:
        """Ask for a missing argument. Raises InvalidInputError naming the option if there is no terminal."""
        if not self.is_interactive:
            raise InvalidInputError(f"missing {option} ({question}): give it on the command line; no terminal to ask")
        return str(typer.prompt(question, default=default, err=True)).strip()

    def confirm(self, shown: str, question: str, *, is_exact: bool, what: str, yes: bool) -> None:
        """Show the choice and ask a person to confirm; without one it must be named exactly, or with --yes.

        Raises InvalidInputError, and Exit if the answer is no.
        """
        if self.is_interactive and not yes:
            print(shown)
            if not typer.confirm(question, default=False, err=True):
                raise typer.Exit(1)
        elif not (is_exact or yes):
            raise InvalidInputError(f"a name or prefix could mean another one: say --yes, or name {what}")

    def call(self, command: str, **args: Any) -> dict[str, Any]:
        """Have a command of the owner run, by the daemon or here, and return its result.

        Another shell that works in the folder of a stopped node is waited for. Raises the command's errors,
        and FolderInUseError naming the holder of the lock.
        """
        deadline = Deadline(REACH_WITHIN_S)
        while True:
            with contextlib.suppress(DaemonNotRunningError):
                return call_daemon(self.folder.path, command, **args)
            try:
                with self.folder.hold(self.purpose, timeout_s=_LOCK_ATTEMPT_S):
                    return _run_here(self.folder, command, args)
            except FolderInUseError:
                if deadline.passed():
                    raise


def group(name: str, purpose: str, *, is_verb: bool = False, **options: Any) -> typer.Typer:
    """Return an empty group of verbs; without a verb it prints its help, unless it is one by itself."""
    options |= {"no_args_is_help": not is_verb, "invoke_without_command": is_verb}
    return typer.Typer(name=name, help=purpose, rich_markup_mode=None, **options)


def verb(
    app: typer.Typer, *names: str, is_there: bool = True, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a verb of a group, under each of ``names``; without a name, the group's default.

    The function gets a `Shell` before its own arguments; ``--dir`` and ``--json`` are added to these. Without
    ``is_there`` there may be no node in the folder yet.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        purpose = " ".join(filter(None, [app.info.name if app.info.name != "node" else "", *names[:1]]))

        @functools.wraps(function)
        def run(*, directory: Path | None, as_json: bool, context: typer.Context | None = None, **given: Any) -> None:
            if context is None or context.invoked_subcommand is None:
                folder = (NodeFolder.open if is_there else NodeFolder)(directory or default_folder())
                shell = Shell(purpose, folder, as_json=as_json)
                try:
                    function(shell, **given)
                except FedmonError as error:
                    if needs := shell.needs(str(error)):
                        error.args = (f"{error}; {needs}",)
                    raise

        keyword, added = inspect.Parameter.KEYWORD_ONLY, {"directory": (Dir, None), "as_json": (JsonOption, False)}
        parameters = [one.replace(kind=keyword) for one in own]
        parameters += [inspect.Parameter(n, keyword, annotation=a, default=d) for n, (a, d) in added.items()]
        if not names:
            parameters.append(inspect.Parameter("context", keyword, annotation=typer.Context))
        vars(run)["__signature__"] = inspect.Signature(parameters)
        if not names:
            app.callback()(run)
        for name in names:
            app.command(name, **options)(run)
        return function

    return decorate


def default_folder() -> Path:
    """Return the folder of a user's only node."""
    from platformdirs import user_data_path

    return user_data_path("fedmon", appauthor=False) / "node"


def dir_option(folder: Path) -> str:
    """Return the ``--dir`` of commands for the node of a folder; empty for the node that they mean without it."""
    usual = NodeFolder(Path(os.environ.get("FEDMON_NODE_DIR") or default_folder())).path
    return "" if folder == usual else f" --dir {shlex.quote(str(folder))}"


def _run_here(folder: NodeFolder, command: str, args: dict[str, Any]) -> dict[str, Any]:
    """Run a command on the registers of a stopped node; decisions wait in the outbox for the daemon."""
    from fedmon.common.settings.sources import load_node
    from fedmon.node.owner.commands import OwnerCommands
    from fedmon.node.registers.state import Registers

    settings = load_node(folder.path, os.environ)
    with Registers(folder, settings) as registers:
        commands = OwnerCommands(folder, settings, registers, environ=os.environ)
        return commands.run(command, args, by=user_name(os.geteuid()))


# --- text that fits the screen ----------------------------------------------------------------------------------------


def record(text: str) -> str:
    """Return one record: folded at a terminal, on one line where a program reads it."""
    line = one_line(text)
    return "\n    ".join(folded(line, width() - 4)) if sys.stdout.isatty() else line


def width(pipe: int = UNLIMITED) -> int:
    """Return the terminal's columns; ``pipe`` if there is none, where nothing is to be cut."""
    return max(40, shutil.get_terminal_size((pipe, 24)).columns)


def noted_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of jobs by beginnings of ids that only they have, with the last cell of each row below it."""
    ids = [str(row[0]) for row in rows]
    enough = next(size for size in range(13, 65) if len({each[:size] for each in ids}) == len(set(ids)))
    first = ["job", "─" * enough, *(each[:enough] for each in ids)]
    notes = ["", "", *(folded(one_line(str(row[-1])), width() - _GAP) for row in rows)]
    others = table(headers, [row[1:-1] for row in rows], width=width() - enough - _GAP).splitlines()
    return "\n".join(
        "\n  ".join([f"{shown:<{enough}}  {line}", *note])
        for shown, line, note in zip(first, others, notes, strict=True)
    )


def fields(shown: Mapping[str, object]) -> str:
    """Return names and values below each other, without those that are None; long values are folded, ids stay whole."""
    indent = max(map(len, shown)) + _GAP
    lines = []
    for name, value in shown.items():
        if value is None:
            continue
        parts = [
            part
            for line in str(value).split("\n")
            for part in folded(one_line(line), width(DEFAULT_WIDTH) - indent) or [""]
        ]
        lines.append(f"{name:<{indent}}{parts[0]}".rstrip())
        lines += [f"{'':<{indent}}{part}".rstrip() for part in parts[1:]]
    return "\n".join(lines)


def folded(text: str, columns: int = 0) -> list[str]:
    """Return a text in lines of limited width (default: the screen's); longer words stay whole."""
    import textwrap

    return textwrap.wrap(text, max(24, columns or width(DEFAULT_WIDTH)), break_on_hyphens=False, break_long_words=False)


def ago(time: str) -> str:
    """Return how long an RFC 3339 time is past, in its largest unit, such as "3 min ago"."""
    return since(datetime.datetime.fromisoformat(time))


def seconds(time: str | None) -> str:
    """Return an RFC 3339 time without its fraction; a dash for None."""
    return f"{time[:10]} {time[11:19]} UTC" if time else "-"
