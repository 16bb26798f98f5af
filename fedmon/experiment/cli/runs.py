"""`fedmon experiment run`, `show`, `watch` and `reconnect`: an experiment while it runs, and as it was left."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import typer
from msgspec.structs import replace

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError
from fedmon.common.log import escape_control
from fedmon.experiment.checking import check
from fedmon.experiment.cli.options import (
    EPILOG,
    EachOption,
    FileArgument,
    JsonOption,
    RunArgument,
)
from fedmon.experiment.cli.tables import Moment, change_lines, closing, moments, table
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.document.files import write
from fedmon.experiment.journal import DOCUMENT, NAME, FileChanges, Follower
from fedmon.experiment.situation import State
from fedmon.experiment.standing import Overview, followed, heading, is_over, overview_of
from fedmon.experiment.states import ResourceState
from fedmon.researcher.cli.shell import NO_ANSWER, emit, logs_above

REDRAW_S = 0.25


class Show(Protocol):
    """Shows how things stand."""

    def __call__(self, shown: Overview) -> None:
        """Show it."""


@contextmanager
def showing(look: Callable[[], Overview], *, silent: bool = False, as_json: bool = False) -> Iterator[Show]:
    """Show a run on stdout; on a terminal it is looked at again by itself, so that the times in it go on."""
    if silent:
        yield lambda _shown: None
    elif as_json:
        yield _Documents()
    elif sys.stdout.isatty():
        with _on_terminal(look) as show:
            yield show
    else:
        yield _Lines()


class _Lines:
    """Writes what changed since the last look."""

    def __init__(self) -> None:
        self._told: set[Moment] = set()
        self._blocker = ""
        self._is_begun = False

    def __call__(self, shown: Overview) -> None:
        if not self._is_begun:
            self._is_begun = True
            sys.stdout.write(f"{heading(shown)}\n")
        for line in change_lines(self._told, shown):
            sys.stdout.write(f"{line}\n")
        # The times in it change all the while; what is new is who holds up whom.
        blocking = shown.blocker.partition(": ")[0]
        if blocking != self._blocker and shown.blocker:
            sys.stdout.write(f"blocker: {shown.blocker}\n")
        self._told, self._blocker = moments(shown), blocking
        sys.stdout.flush()


class _Documents:
    """Writes a document a line for each change of a resource."""

    def __init__(self) -> None:
        self._states: dict[int, str] = {}

    def __call__(self, shown: Overview) -> None:
        for each in shown.resources:
            if self._states.get(each.guid, "") != each.state:
                sys.stdout.write(f"{msgspec.json.encode(each).decode()}\n")
        self._states = {each.guid: each.state for each in shown.resources}
        sys.stdout.flush()


@contextmanager
def _on_terminal(look: Callable[[], Overview]) -> Iterator[Show]:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def screen() -> RenderableType:
        shown, now = look(), time.time()
        below = [Text(line) for line in closing(shown, now)]
        above = Text(heading(shown))
        rows = max(3, console.height - 9)
        return Group(above, table(shown, now, rows=rows, width=console.width), *below)

    terminal = sys.stderr
    with (
        Live(
            console=console,
            get_renderable=screen,
            refresh_per_second=1 / REDRAW_S,
            vertical_overflow="crop",
            transient=True,
        ),
        logs_above(terminal),
    ):
        yield lambda _shown: None


INTERRUPTED = 130
LOOK_S = 1.0
"""How old what is shown may become where the system does not tell of changes."""
PACE_S = 0.05
MANY = 100
"""So many resources are listed at the end; a JSON document has all of them."""
FOLDER = Path("experiments")
PIPE_WIDTH = 200
"""Of a table that goes into a pipe or a file."""

TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds until it is to be over; then all is released.")
]
ForOption = Annotated[
    float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds to go on; without it until it is over.")
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="When it is over, release nothing until Ctrl-C, to look around.")
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command(epilog=EPILOG)(run)
    app.command(epilog=EPILOG)(show)
    app.command(epilog=EPILOG)(watch)
    app.command(epilog=EPILOG)(reconnect)


def run(
    file: FileArgument,
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for the files; without it the document's, or experiments here.")
    ] = None,
    timeout: TimeoutOption = None,
    keep: KeepOption = False,
    each: EachOption = False,
    json: JsonOption = False,
) -> None:
    """Run an experiment and show its states and who holds it up; at its end, and at Ctrl-C, everything is released."""
    found = check(file, wait_all_ready=not each)
    found.plan.check()
    where = directory or found.description.local_dir or FOLDER
    description = replace(found.description, local_dir=str(Path(where).expanduser().absolute()))
    with ExperimentController.from_description(description) as ec:
        # For those who look at the run later: its journal knows no names.
        write(ec.describe(), Path(ec.run_dir) / DOCUMENT)
        if any(ec.get_resource(guid).asks_federation for guid in ec.resources):
            _ = ec.federation  # before anything begins that is in vain without it
        ec.deploy(wait_all_ready=not each)
        _finish(ec, found.plan.facts.names, timeout_s=timeout, keep=keep, as_json=json)


def reconnect(
    run_dir: RunArgument, *, timeout: TimeoutOption = None, keep: KeepOption = False, json: JsonOption = False
) -> None:
    """Take up again a run whose process died: nothing is done twice, and jobs that go on are adopted."""
    with Follower(run_dir) as follower:
        names = follower.names()
        shown = followed(follower, names, time.time())
    if shown.resources and shown.status in ("ended", "failed"):
        sys.stderr.write("fedmon: it is over, and everything was released: nothing is left to be taken up\n")
        _print(shown, as_json=json)
        raise typer.Exit(0 if shown.is_well else 1)
    was_deployed, is_whole = bool(follower.state.groups), (follower.folder / DOCUMENT).is_file()
    if not was_deployed and not is_whole:
        raise ConflictError(
            f"the process of the run in {follower.folder} died before it deployed anything, and nobody can tell "
            "whether all was registered: begin a new run"
        )
    with ExperimentController.reconnect(run_dir) as ec:
        if not was_deployed:
            ec.deploy()  # what `run` would have done next
        if left_out := _undeployed(ec.snapshot):
            guids = ", ".join(map(str, left_out))
            sys.stderr.write(f"fedmon: resource {guids} was never deployed, and is not waited for\n")
        _finish(ec, names, timeout_s=timeout, keep=keep, as_json=json)


def show(run_dir: RunArgument, *, json: JsonOption = False) -> None:
    """Show how a run stands, also one that another process has: its journal is read, and nothing is changed."""
    with Follower(run_dir) as follower:
        shown = followed(follower, follower.names(), time.time())
    _print(shown, as_json=json)


def watch(
    run_dir: RunArgument,
    *,
    timeout: ForOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line, for each change.")] = False,
) -> None:
    """Follow a run that another process has until it is over: states, progress and who holds it up."""
    deadline = Deadline(10**9 if timeout is None else timeout)
    with Follower(run_dir) as follower:
        names = follower.names()
        shown = followed(follower, names, time.time())
        try:
            is_over_already = shown.status != "running" and not json
            with showing(lambda: shown, silent=is_over_already, as_json=json) as on_change:
                on_change(shown)
                while shown.status == "running" and not deadline.passed():
                    follower.wait(min(_pace(shown), deadline.left_s()))
                    shown = followed(follower, names, time.time())
                    on_change(shown)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if not json:
        _print(shown, as_json=False)
    if shown.status == "running":
        raise typer.Exit(NO_ANSWER)
    if shown.status == "left" or not shown.is_well:
        raise typer.Exit(1)


def _pace(shown: Overview) -> float:
    """Return how old what is shown may become: on a terminal what counts down does so, where that is little work."""
    return REDRAW_S if sys.stdout.isatty() and len(shown.resources) <= MANY else LOOK_S


def _finish(
    ec: ExperimentController, names: Mapping[int, str], *, timeout_s: float | None, keep: bool, as_json: bool
) -> None:
    """Show a run of this process until it is over, release it, and end with the exit code of what came of it."""
    began = time.time()

    def look() -> Overview:
        now = time.time()
        return overview_of(
            ec.snapshot,
            names,
            folder=(ec.exp_id, ec.run_id, ec.run_dir),
            process=None,
            times=(began, now, now),
            is_live=True,
        )

    code = 0
    with showing(look, silent=as_json) as on_change, _heard_signals() as told:
        try:
            if not _until_over(ec, lambda: on_change(look()), timeout_s, told):
                code = NO_ANSWER
            elif keep:
                sys.stderr.write("fedmon: it is over; everything is kept until Ctrl-C\n")
                told.wait()
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            code = INTERRUPTED if not (keep and _is_over(ec.snapshot)) else 0
        finally:
            ec.shutdown()
            on_change(look())
    with Follower(ec.run_dir) as follower:
        shown = followed(follower, names, time.time())
    _print(shown, as_json=as_json)
    if code == NO_ANSWER:
        sys.stderr.write(f"fedmon: not over within {timeout_s:g} s; everything was released\n")
    elif code == INTERRUPTED:
        sys.stderr.write("fedmon: ended before it was over; everything was released\n")
    raise typer.Exit(code or (0 if shown.is_well else 1))


def _until_over(
    ec: ExperimentController, on_change: Callable[[], None], timeout_s: float | None, told: threading.Event
) -> bool:
    deadline = Deadline(10**9 if timeout_s is None else timeout_s)
    with FileChanges(Path(ec.run_dir) / NAME) as changes:
        while not _is_over(ec.snapshot):
            if told.is_set():
                raise KeyboardInterrupt
            if deadline.passed():
                return False
            changes.wait(min(LOOK_S, deadline.left_s()))
            if not _is_over(ec.snapshot):
                on_change()
                # Whoever shows each of a thousand changes holds up those who make them.
                ec.wait_finished(ec.resources, timeout=min(PACE_S, deadline.left_s()))
    return True


def _undeployed(state: State) -> list[int]:
    """Return the guids of those that nobody asked to deploy."""
    return [
        guid for guid, one in sorted(state.resources.items()) if one.state is ResourceState.NEW and one.group is None
    ]


def _is_over(state: State) -> bool:
    """Tell whether all that was deployed is over."""
    resources = state.resources.mutate()
    for guid in _undeployed(state):
        del resources[guid]
    return is_over(replace(state, resources=resources.finish()))


@contextmanager
def _heard_signals() -> Iterator[threading.Event]:
    """Set an event at the first Ctrl-C or SIGTERM; the second raises KeyboardInterrupt.

    An exception at the first could strike while a lock is held, or where it is swallowed.
    """
    told = threading.Event()

    def interrupt(*_: object) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    heard = [each for each in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, interrupt) for each in heard}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _print(shown: Overview, *, as_json: bool) -> None:
    if as_json:
        emit({"well": shown.is_well, **msgspec.structs.asdict(shown)}, text="", as_json=True)
        return
    from rich.console import Console

    now, is_terminal = time.time(), sys.stdout.isatty()
    sys.stdout.write(f"{heading(shown)}\n")
    if shown.resources:
        console = Console(highlight=False, width=None if is_terminal else PIPE_WIDTH)
        rows = None if len(shown.resources) <= MANY else MANY
        with console.capture() as capture:
            console.print(table(shown, now, rows=rows, width=console.width if is_terminal else None))
        # What a table is filled up with would be broken into lines of their own in a file or a mail.
        text = capture.get()
        sys.stdout.write(text if is_terminal else "\n".join(line.rstrip() for line in text.split("\n")))
    sys.stdout.write("\n".join([*closing(shown, now), escape_control(f"files: {shown.run_dir}")]) + "\n")
