"""`fedmon experiment run`, `show`, `watch` and `reconnect`: a run while it goes on, and as it was left."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec.structs import replace

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError
from fedmon.common.log import OUR_LOGGER, escape_control
from fedmon.experiment.check.document import check
from fedmon.experiment.check.problems import ImpossiblePlanError
from fedmon.experiment.check.status import Overview, followed, heading
from fedmon.experiment.cli.documents import EachOption, FileArgument, JsonOption, RunArgument, connected
from fedmon.experiment.cli.tables import Moment, change_lines, closing, moments, table
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.document.files import write
from fedmon.experiment.journal import DOCUMENT, Follower
from fedmon.experiment.natures import lasts, natures
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceState
from fedmon.researcher.cli.shell import NO_ANSWER, BrokerOption, IdOption, SettingsOption, emit, logs_above

REDRAW_S = 0.25
INTERRUPTED = 130
LOOK_S = 1.0
"""How old the shown state may become if the system reports no changes."""
PACE_S = 0.05
MANY = 100
"""This many resources are listed at the end; a JSON document has all."""
FOLDER = Path("experiments")
PIPE_WIDTH = 200

TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds until all is released (default: no limit).")
]
ForOption = Annotated[
    float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds to follow it (default: until it is over).")
]
KeepOption = Annotated[bool, typer.Option("--keep", help="When it is over, release nothing until Ctrl-C.")]


def run(
    file: FileArgument,
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for the files (default: the document's, or ./experiments).")
    ] = None,
    timeout: TimeoutOption = None,
    keep: KeepOption = False,
    each: EachOption = False,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    json: JsonOption = False,
) -> None:
    """Run an experiment and show its states and blockers; at its end and at Ctrl-C everything is released."""
    found = check(file, wait_all_ready=not each)
    if found.plan.errors:
        raise ImpossiblePlanError(found.plan.errors)
    where = directory or found.description.local_dir or FOLDER
    description = replace(found.description, local_dir=str(Path(where).expanduser().absolute()))
    with (
        connected(broker, settings, researcher) as federation,
        _failures_told_once(),
        ExperimentController.from_description(description, federation=federation) as ec,
    ):
        # A later process sees by it that everything was registered.
        write(ec.describe(), Path(ec.run_dir) / DOCUMENT)
        if any(ec.get_resource(guid).asks_federation for guid in ec.resources):
            _ = ec.federation  # nothing begins without a connection
        ec.deploy(wait_all_ready=not each)
        _finish(ec, timeout_s=timeout, keep=keep, as_json=json)


def reconnect(
    run_dir: RunArgument,
    *,
    timeout: TimeoutOption = None,
    keep: KeepOption = False,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    json: JsonOption = False,
) -> None:
    """Resume a run whose process died: nothing runs twice, and jobs that still run are adopted."""
    with Follower(run_dir) as follower:
        shown = followed(follower, time.time())
    if shown.resources and shown.status in ("ended", "failed"):
        sys.stderr.write("fedmon: it is over, and everything was released: nothing is left to be taken up\n")
        _print(shown, as_json=json)
        raise typer.Exit(0 if shown.is_well else 1)
    was_deployed, is_whole = bool(follower.state.groups), (follower.folder / DOCUMENT).is_file()
    if not was_deployed and not is_whole:
        raise ConflictError(
            f"the process of the run in {follower.folder} died before everything was registered: begin a new run"
        )
    with (
        connected(broker, settings, researcher) as federation,
        _failures_told_once(),
        ExperimentController.reconnect(run_dir, federation=federation) as ec,
    ):
        if not was_deployed:
            ec.deploy()  # the next step of `run`
        if left_out := _undeployed(ec.snapshot):
            guids = ", ".join(map(str, left_out))
            sys.stderr.write(f"fedmon: resource {guids} was never deployed, and is not waited for\n")
        _finish(ec, timeout_s=timeout, keep=keep, as_json=json)


def show(run_dir: RunArgument, *, json: JsonOption = False) -> None:
    """Show the state of a run, also of another process, from its journal; nothing is changed."""
    with Follower(run_dir) as follower:
        shown = followed(follower, time.time())
    _print(shown, as_json=json)


def watch(
    run_dir: RunArgument,
    *,
    timeout: ForOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line, for each change.")] = False,
) -> None:
    """Follow a run of another process until it is over."""
    deadline = Deadline(10**9 if timeout is None else timeout)
    with Follower(run_dir) as follower:
        shown = followed(follower, time.time())
        try:
            is_over_already = not shown.may_run and not json
            with showing(lambda: shown, silent=is_over_already, as_json=json) as on_change:
                on_change(shown)
                while shown.may_run and not deadline.passed():
                    is_counted_down = sys.stdout.isatty() and len(shown.resources) <= MANY
                    follower.wait(min(REDRAW_S if is_counted_down else LOOK_S, deadline.left_s()))
                    shown = followed(follower, time.time())
                    on_change(shown)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if not json:
        _print(shown, as_json=False)
    if shown.may_run:
        raise typer.Exit(NO_ANSWER)
    if shown.status == "left" or not shown.is_well:
        raise typer.Exit(1)


@contextmanager
def showing(
    look: Callable[[], Overview], *, silent: bool = False, as_json: bool = False
) -> Iterator[Callable[[Overview], None]]:
    """Give what shows a run on stdout; a terminal is redrawn by itself, so that its times go on."""
    if silent:
        yield lambda _shown: None
    elif as_json:
        yield _Documents()
    elif sys.stdout.isatty():
        with _on_terminal(look):
            yield lambda _shown: None
    else:
        yield _Lines()


class _Lines:
    """Writes the changes since the last look."""

    def __init__(self) -> None:
        self._told: set[Moment] = set()
        self._blocker: str | None = None

    def __call__(self, shown: Overview) -> None:
        lines = [heading(shown)] if self._blocker is None else []
        lines += change_lines(self._told, shown)
        blocking = shown.blocker.partition(": ")[0]  # the rest counts the seconds
        if blocking and blocking != self._blocker:
            lines.append(escape_control(f"blocker: {shown.blocker}"))
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        self._told, self._blocker = moments(shown), blocking


class _Documents:
    """Writes a document a line for each change of a resource."""

    def __init__(self) -> None:
        self._states: dict[int, str] = {}

    def __call__(self, shown: Overview) -> None:
        for each in shown.resources:
            if self._states.get(each.guid) != each.state:
                sys.stdout.write(f"{msgspec.json.encode(each).decode()}\n")
        self._states = {each.guid: each.state for each in shown.resources}
        sys.stdout.flush()


@contextmanager
def _on_terminal(look: Callable[[], Overview]) -> Iterator[None]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def screen() -> Any:
        shown, now = look(), time.time()
        rows = max(3, console.height - 9)
        below = [Text(line) for line in closing(shown, now)]
        return Group(Text(heading(shown)), table(shown, now, rows=rows, width=console.width), *below)

    terminal, per_s = sys.stderr, 1 / REDRAW_S
    live = Live(
        console=console, get_renderable=screen, refresh_per_second=per_s, vertical_overflow="crop", transient=True
    )
    with live, logs_above(terminal):
        yield


def _finish(ec: ExperimentController, *, timeout_s: float | None, keep: bool, as_json: bool) -> None:
    """Show a run of this process until it is over, release it, and exit with the code of its outcome."""
    code = 0
    with Follower(ec.run_dir) as follower:

        def look() -> Overview:
            return followed(follower, time.time())

        with showing(look, silent=as_json) as on_change, _heard_signals() as told:
            try:
                if not _until_over(ec, follower, lambda: on_change(look()), timeout_s, told):
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
        shown = look()
    _print(shown, as_json=as_json)
    if code == NO_ANSWER:
        sys.stderr.write(f"fedmon: not over within {timeout_s:g} s; everything was released\n")
    elif code == INTERRUPTED:
        sys.stderr.write("fedmon: ended before it was over; everything was released\n")
    raise typer.Exit(code or (0 if shown.is_well else 1))


def _until_over(
    ec: ExperimentController,
    follower: Follower,
    on_change: Callable[[], None],
    timeout_s: float | None,
    told: threading.Event,
) -> bool:
    deadline = Deadline(10**9 if timeout_s is None else timeout_s)
    while not _is_over(ec.snapshot):
        if told.is_set():
            raise KeyboardInterrupt
        if deadline.passed():
            return False
        follower.wait(min(LOOK_S, deadline.left_s()))
        if not _is_over(ec.snapshot):
            on_change()
            # To show each of a thousand changes would delay them.
            ec.wait_finished(ec.resources, timeout=min(PACE_S, deadline.left_s()))
    return True


def _undeployed(state: State) -> list[int]:
    """Return the guids of the resources that were never deployed."""
    return [guid for guid, one in sorted(state.resources.items()) if _is_left_out(one)]


def _is_left_out(resource: Resource) -> bool:
    return resource.state is ResourceState.NEW and resource.group is None


def _is_over(state: State) -> bool:
    """Tell whether all that was deployed ended, except resources that run until they are stopped."""
    nature = natures()
    return state.is_aborted or all(
        one.state >= ResourceState.STOPPED
        or _is_left_out(one)
        or (
            one.state is ResourceState.STARTED
            and (one.guid, "stop") not in state.wants
            and lasts(one, state.resources, nature)
        )
        for one in state.resources.values()
    )


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


@contextmanager
def _failures_told_once() -> Iterator[None]:
    """Keep the failures of resources out of the log: the result has each with its reason."""

    def is_kept(record: logging.LogRecord) -> bool:
        is_failure = record.name.startswith(f"{OUR_LOGGER}.experiment.resource") and record.levelno >= logging.ERROR
        return not is_failure and record.name != f"{OUR_LOGGER}.experiment.failure"

    handlers = list(logging.getLogger(OUR_LOGGER).handlers)
    for handler in handlers:
        handler.addFilter(is_kept)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_kept)


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
        # Trailing blanks would wrap in a file or a mail.
        text = capture.get()
        sys.stdout.write(text if is_terminal else "\n".join(line.rstrip() for line in text.split("\n")))
    sys.stdout.write("\n".join([*closing(shown, now), escape_control(f"files: {shown.run_dir}")]) + "\n")
