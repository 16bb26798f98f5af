"""`fedmon experiment run`, `show`, `watch` and `reconnect`: live runs and finished ones."""

from __future__ import annotations

import datetime
import logging
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec.structs import replace

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError
from fedmon.common.files import at_home
from fedmon.common.log import OUR_LOGGER, escape_control
from fedmon.common.options import BrokerOption, ForOption, IdOption, JsonOption, LinesOption, SettingsOption
from fedmon.common.text import duration, joined, moment, table
from fedmon.experiment.cli import EachOption, FileArgument, RunArgument, connected
from fedmon.experiment.states import ResourceState
from fedmon.researcher.cli.shell import NO_ANSWER, emit

if TYPE_CHECKING:
    from fedmon.experiment.check.status import Overview, Standing
    from fedmon.experiment.controller import ExperimentController
    from fedmon.experiment.situation import State

_LOOK_S = 0.25
MANY = 100
"""The table lists this many resources; a JSON document has all."""
_DURATIONS = re.compile(r"(?:[0-9.]+ (?:ms|s|min|h|d)\b ?)+")

TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds until all is released (default: no limit).")
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
    from fedmon.experiment.check.document import check
    from fedmon.experiment.check.graph import ImpossiblePlanError
    from fedmon.experiment.controller import ExperimentController
    from fedmon.experiment.document.files import write
    from fedmon.experiment.journal import DOCUMENT

    found = check(file, wait_all_ready=not each)
    if found.plan.errors:
        raise ImpossiblePlanError(one for one in found.placed.problems if one.severity == "error")
    where = directory or found.description.local_dir or "experiments"
    description = replace(found.description, local_dir=str(at_home(where).absolute()))
    _log_no_failures()
    with (
        connected(broker, settings, researcher) as federation,
        ExperimentController.from_description(description, federation=federation) as ec,
    ):
        # It tells `reconnect` that everything was registered.
        write(ec.describe(), Path(ec.run_dir) / DOCUMENT)
        if any(ec.get_resource(guid).asks_federation for guid in ec.resources):
            _ = ec.federation  # nothing begins without a connection
        with _heard_signals() as heard:
            ec.deploy(wait_all_ready=not each)
            _finish(ec, heard, timeout, keep=keep, json=json)


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
    from fedmon.experiment.check.status import followed
    from fedmon.experiment.controller import ExperimentController
    from fedmon.experiment.journal import DOCUMENT, Follower

    follower = Follower(run_dir)
    shown = followed(follower)
    if shown.resources and shown.status in ("ended", "failed"):
        sys.stderr.write("fedmon: the run is over and released: nothing to resume\n")
        _print(shown, as_json=json)
        raise typer.Exit(0 if shown.is_well else 1)
    was_deployed = bool(follower.run.state.groups)
    if not was_deployed and not (follower.folder / DOCUMENT).is_file():
        raise ConflictError(
            f"the process of the run in {follower.folder} died before everything was registered: begin a new run"
        )
    _log_no_failures()
    with (
        connected(broker, settings, researcher) as federation,
        ExperimentController.reconnect(run_dir, federation=federation) as ec,
        _heard_signals() as heard,
    ):
        if not was_deployed:
            ec.deploy()  # the next step of `run`
        _finish(ec, heard, timeout, keep=keep, json=json)


def show(run_dir: RunArgument, *, json: JsonOption = False) -> None:
    """Show the state of a run, also of another process, from its journal; nothing is changed."""
    from fedmon.experiment.check.status import followed
    from fedmon.experiment.journal import Follower

    _print(followed(Follower(run_dir)), as_json=json)


def watch(run_dir: RunArgument, *, seconds: ForOption = None, json: LinesOption = False) -> None:
    """Follow a run of another process until it is over."""
    from fedmon.experiment.check.status import followed
    from fedmon.experiment.journal import Follower

    deadline, follower, changes = Deadline(seconds), Follower(run_dir), _Changes(as_json=json)
    shown = followed(follower)
    if json or shown.status == "running":
        changes.print(shown)
    while shown.status == "running" and not deadline.passed():
        threading.Event().wait(min(_LOOK_S, deadline.left_s()))
        shown = followed(follower)
        changes.print(shown)
    if not json:
        _print(shown, as_json=False)
    if shown.status == "running":
        raise typer.Exit(NO_ANSWER)
    if shown.status == "left" or not shown.is_well:
        raise typer.Exit(1)


def _finish(ec: ExperimentController, heard: list[int], timeout: float | None, *, keep: bool, json: bool) -> None:
    """Show a run of this process until it is over, release it, and exit with the code of its outcome."""
    from fedmon.experiment.check.status import followed
    from fedmon.experiment.journal import Follower

    deadline, follower, changes = Deadline(timeout), Follower(ec.run_dir), None if json else _Changes()

    def tell() -> None:
        if changes is not None:
            changes.print(followed(follower))

    def is_done() -> bool:
        return bool(heard) or _is_over(ec.snapshot)

    try:
        while not (is_over := _is_over(ec.snapshot)) and not heard and not deadline.passed():
            tell()
            ec.wait(ec.resources, ResourceState.STOPPED, is_done, timeout=min(_LOOK_S, deadline.left_s()))
        tell()
        if not is_over:
            ec.fm.give_up("interrupted before its end" if heard else f"not over within {timeout:g} s")
        elif keep:
            sys.stderr.write("fedmon: the run is over; nothing is released until Ctrl-C\n")
            ec.wait(None, ResourceState.RELEASED, lambda: heard)
    finally:
        ec.shutdown()
        follower.look()
        follower.run.state = ec.snapshot  # a full disk may have kept the end out of the journal
        tell()
    shown = followed(follower)
    _print(shown, as_json=json)
    code = 0 if shown.is_well else 1
    if not is_over:
        code = 128 + heard[0] if heard else NO_ANSWER
        sys.stderr.write(f"fedmon: {shown.level_reason}; everything was released\n")
    raise typer.Exit(code)


def _is_over(state: State) -> bool:
    """Tell whether all that was deployed ended, except resources that run until they are stopped."""
    from fedmon.experiment.natures import lasts

    return state.is_aborted or all(
        one.state >= ResourceState.STOPPED
        or (one.state is ResourceState.NEW and one.group is None)  # it was never deployed
        or (
            one.state is ResourceState.STARTED and (one.guid, "stop") not in state.wants and lasts(one, state.resources)
        )
        for one in state.resources.values()
    )


@contextmanager
def _heard_signals() -> Iterator[list[int]]:
    """Add the number of the first Ctrl-C or SIGTERM to a list; the second raises KeyboardInterrupt.

    An exception at the first could strike while a lock is held, or where it is swallowed.
    """
    heard: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    signals = [each for each in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, interrupt) for each in signals}
    try:
        yield heard
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _log_no_failures() -> None:
    """Keep the failures of resources out of the log: the result has each with its reason."""

    def is_kept(record: logging.LogRecord) -> bool:
        is_failure = record.name.startswith(f"{OUR_LOGGER}.experiment.resource") and record.levelno >= logging.ERROR
        return not is_failure and record.name != f"{OUR_LOGGER}.experiment.failure"

    for handler in logging.getLogger(OUR_LOGGER).handlers:
        handler.addFilter(is_kept)


class _Changes:
    """Prints the states that resources reached since the last call and a new blocker, or JSON of these resources."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._seen: dict[int, dict[str, float]] = {}
        self._blocker: str | None = None

    def print(self, shown: Overview) -> None:
        """Print the changes since the last call."""
        changed = [each for each in shown.resources if self._seen.get(each.guid) != each.times]
        if self._as_json:
            lines = [msgspec.json.encode(each).decode() for each in changed]
        else:
            lines = [escape_control(line) for line in self._lines(shown, changed)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        self._seen.update({each.guid: each.times for each in changed})

    def _lines(self, shown: Overview, changed: list[Standing]) -> Iterator[str]:
        from fedmon.experiment.check.status import heading

        if self._blocker is None:
            yield heading(shown)
        reached = [
            (t, ResourceState[state], each.guid, _titled(each))
            for each in changed
            for state, t in each.times.items()
            if self._seen.get(each.guid, {}).get(state) != t
        ]
        # Many changes at once take a line for each state; in their order they may take a line each.
        reached.sort(key=itemgetter(0, 1, 2) if len(reached) <= MANY else itemgetter(1, 0, 2))
        for state, those in groupby(reached, key=itemgetter(1)):
            times, _, _, names = zip(*those, strict=True)
            clock = datetime.datetime.fromtimestamp(times[-1]).astimezone().strftime("%H:%M:%S.%f")[:-3]
            yield f"{clock} {state.name} {joined(names, most=8)}"
        blocker = _DURATIONS.sub("", shown.blocker)  # which grow all the time
        if blocker and blocker != self._blocker:
            yield f"blocker: {shown.blocker}"
        self._blocker = blocker


def _print(shown: Overview, *, as_json: bool) -> None:
    from fedmon.experiment.check.status import heading

    if as_json:
        emit({"well": shown.is_well, **msgspec.structs.asdict(shown)}, text="", as_json=True)
        return
    columns, cells = table_of(shown, rows=MANY)
    lines = [heading(shown)]
    if cells:
        lines.append(table(columns, cells))
    if more := len(shown.resources) - len(cells):
        lines.append(f"... {more} more, see --json")
    lines += [f"failed: {escape_control(failure)}" for failure in failures_of(shown)[:MANY]]
    lines += [f"{name}: {escape_control(fact)}" for name, fact in facts_of(shown).items()]
    sys.stdout.write("\n".join([*lines, ""]))


def facts_of(shown: Overview) -> dict[str, str]:
    """Return the facts about a run as a whole, by name."""
    reached = Counter(each.reached for each in shown.resources)
    counts = ", ".join(f"{reached[state.name]} {state.name}" for state in ResourceState if reached[state.name])
    over = sum(ResourceState[each.state] >= ResourceState.STOPPED for each in shown.resources)
    failed = sum(each.failed for each in shown.resources)
    facts = {
        "began": moment(shown.began) if shown.began else "",
        "so far" if shown.status == "running" else "took": duration(_now(shown) - shown.began) if shown.began else "",
        "resources": f"{counts or 'none'}; {over} of {len(shown.resources)} over" + f", {failed} failed" * bool(failed),
        "level": "" if shown.failed or not shown.level_reason else f"{shown.level}: {shown.level_reason}",
        "blocker": shown.blocker,
        "files": shown.run_dir,
    }
    return {name: fact for name, fact in facts.items() if fact}


def failures_of(shown: Overview) -> list[str]:
    """Return each failed resource with its reason, which does not repeat that of another one."""
    failed = [each for each in shown.resources if each.failed]
    known, lines = {each.reason for each in failed}, []
    for each in failed:
        ends = (at.end() - 2 for at in re.finditer("(?i:failed): ", each.reason) if each.reason[at.end() :] in known)
        optional = "" if each.critical else ", not critical"
        lines.append(f"{_titled(each)}{optional}: {each.reason[: next(ends, None)] or 'no reason'}")
    return lines


def _titled(each: Standing) -> str:
    return " ".join(filter(None, (str(each.guid), each.name, f"({each.rtype})")))


def table_of(shown: Overview, *, rows: int) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table of resources and its rows, failed and first ones if not all fit.

    Empty columns are left out.
    """
    fitting = sorted(shown.resources, key=lambda each: not each.failed)[:rows]
    cells = [_cells(each, shown) for each in sorted(fitting, key=lambda each: each.guid)]
    columns = [name for name in cells[0] if any(each[name] for each in cells)] if cells else []
    return columns, [[each[name] for name in columns] for each in cells]


def _cells(each: Standing, shown: Overview) -> dict[str, str]:
    """Return a resource by column; ``for`` is how long it has been in its state, or how long it ran."""
    from fedmon.experiment.check.status import RUNS

    is_over, started = ResourceState[each.state] >= ResourceState.STOPPED, each.times.get("STARTED")
    ends = (each.times[state] for state in ("STOPPED", "FAILED", "RELEASED") if state in each.times)
    began, ended = (started, next(ends, None)) if is_over else (each.times.get(each.state), _now(shown))
    if each.failed or not each.action:
        why = each.waiting.removeprefix(RUNS)
    elif each.left_s is not None:
        why = f"{each.action} in {duration(each.left_s)}"
    else:
        others = [one for one in shown.resources if one.guid in each.waits_for]
        named = [f"{other.guid} {other.name}".rstrip() + f" ({other.state})" for other in others]
        why = f"{each.action} waits for {joined(named)}"
    is_released = each.state == ResourceState.RELEASED.name and each.reached != each.state
    return {
        "#": str(each.guid),
        "name": each.name,
        "type": each.rtype,
        "state": f"{each.reached}, released" if is_released else each.state,
        "start": "" if started is None else f"+{duration(started - shown.began)}",
        "for": "" if began is None or ended is None else duration(ended - began),
        "why": why,
    }


def _now(shown: Overview) -> float:
    return time.time() if shown.status == "running" else shown.until
