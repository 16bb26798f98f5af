"""The researcher's verbs that look at nodes, ask for approval and measure."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.common.log import escape_control
from fedmon.common.options import ForOption, IntervalOption, JsonOption, LinesOption, MetricsOption, NodesOption, each
from fedmon.common.text import moment, plural, size
from fedmon.researcher.cli.shell import (
    dataset_ids,
    emit,
    exit_code,
    federated,
    no_sample,
    outcomes_document,
    tell_absent,
)

if TYPE_CHECKING:
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.samples.record import Record
    from fedmon.researcher.samples.store import StoreCounts
    from fedmon.researcher.samples.watch import LiveSample, Watch

SHOW_EVERY_S = 1.0
KEYS_S = 0.1
"""How often the keys of a screen are read."""
METRICS_PORT = 9464
"""Source: OpenTelemetry's default port of a Prometheus exporter."""

PlanArgument = Annotated[Path, typer.Argument(help="A Python file with a training plan.")]


@federated()
def nodes(federation: Federation, *, json: JsonOption = False) -> None:
    """Show which nodes are there, since when, when they were last seen, and why one is not."""
    with federation:
        found = federation.nodes()
        document = {
            "broker": federation.settings.broker.url,
            "researcher_id": federation.researcher_id,
            "nodes": [node for _, node in sorted(found.items())],
            "explanation": found.explanation(),
        }
        emit(document, text=found, as_json=json)


@federated()
def forget(
    federation: Federation,
    *,
    node_id: Annotated[str, typer.Argument(metavar="NODE", help="The id of a node that is gone for good.")],
    timeout: Annotated[float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait at most.")] = None,
    json: JsonOption = False,
) -> None:
    """Clear the broker's retained messages of a node that is gone for good."""
    del timeout  # the federation has it
    with federation:
        forgotten = federation.forget(node_id, timeout_s=federation.session.asker.timeout_s)
        emit({"forgotten": forgotten}, text=str(forgotten), as_json=json)


@federated()
def ping(federation: Federation, *, node: NodesOption = None, json: JsonOption = False) -> None:
    """Ask nodes for a sign of life."""
    with federation:
        _finish(federation, federation.ping(nodes=node), as_json=json)


@federated()
def datasets(
    federation: Federation,
    *,
    tags: Annotated[list[str] | None, typer.Argument(help="Only datasets with all of these tags; also as a,b.")] = None,
    node: NodesOption = None,
    json: JsonOption = False,
) -> None:
    """List the datasets that nodes offer to you, or find those with certain tags."""
    with federation:
        wanted = each(tags, "TAGS")
        found: Outcomes[Any] = federation.search(wanted, nodes=node) if wanted else federation.datasets(nodes=node)
        is_found = not wanted or any(reply.datasets for reply in found.ok.values())
        _finish(federation, found, as_json=json, code=0 if is_found else NotFoundError.exit_code)


@federated(asks=False)
def whoami(federation: Federation, *, json: JsonOption = False) -> None:
    """Show your researcher id, which owners allow by name, and the broker and folder that you use.

    A new id is made once, of your user name, this host and 4 random characters, and kept in the folder.
    """
    who, settings = federation.researcher_id, federation.settings
    document = {"researcher_id": who, "broker": settings.broker.url, "folder": str(settings.folder)}
    text = f"{who}\nbroker  {settings.broker.url}\nfolder  {settings.folder}"
    emit(document, text=text, more=f"owners allow you with: fedmon node policy allow {who}", as_json=json)


@federated()
def request(
    federation: Federation,
    *,
    plan: PlanArgument,
    description: Annotated[str, typer.Option(help="A description of the plan, for the owners to read.")] = "",
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Dataset to run it on: id, its beginning, name or tag (default: all); may be repeated."),
    ] = None,
    purpose: Annotated[str, typer.Option(help="Why you ask, for the owners to read.")] = "",
    node: NodesOption = None,
    json: JsonOption = False,
) -> None:
    """Ask owners to approve a training plan; they decide in their own time."""
    with federation:
        datasets = dataset and dataset_ids(federation, dataset, node)
        outcomes = federation.approve(plan, description=description, datasets=datasets, purpose=purpose, nodes=node)
        _finish(federation, outcomes, as_json=json)


@federated()
def status(federation: Federation, *, plan: PlanArgument, node: NodesOption = None, json: JsonOption = False) -> None:
    """Show where a training plan stands at each node, and your grants."""
    with federation:
        _finish(federation, federation.plan_status(plan, nodes=node), as_json=json)


@federated(asks=False)
def logs(
    federation: Federation,
    *,
    node: NodesOption = None,
    level: Annotated[str, typer.Option(help="The lowest level to show.")] = "WARNING",
    seconds: ForOption = None,
    json: LinesOption = False,
) -> None:
    """Follow the logs of nodes, if their owners allow it."""
    records: queue.Queue[Any] = queue.Queue(10_000)
    with (
        federation,
        contextlib.suppress(KeyboardInterrupt),
        federation.logs(records.put_nowait, nodes=node, level=level.upper()),
    ):
        if not json:
            sys.stderr.write(f"fedmon: waiting for log lines at {level.upper()} or above; Ctrl-C ends\n")
        tell_absent(federation, node)
        deadline = Deadline(seconds)
        while not deadline.passed():
            with contextlib.suppress(queue.Empty):
                entry = records.get(timeout=min(deadline.left_s(), 3600.0))
                line = f"{moment(entry.time)} {entry.level} {entry.node_id} {entry.logger}: {entry.msg}"
                emit(entry, text=escape_control(line), as_json=json)


@federated(asks=False)
def record(
    federation: Federation,
    *,
    path: Annotated[Path | None, typer.Argument(help="The file; made if missing, else continued.")] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Metrics store that gets all samples too, such as http://host:8428."),
    ] = None,
    node: NodesOption = None,
    metric: MetricsOption = None,
    interval: IntervalOption = None,
    history: Annotated[float, typer.Option(min=0, help="Seconds of history to fetch from new nodes.")] = 3600.0,
    seconds: ForOption = None,
    json: LinesOption = False,
) -> None:
    """Keep every sample in a recording, in order and without gaps; missed samples are requested again."""
    # From here on both end the record in order: all received samples are written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    on_terminal = not json and sys.stdout.isatty()
    with federation:
        recording = federation.record(path, to=to, nodes=node, metrics=metric, interval_s=interval, history_s=history)
        with recording, contextlib.suppress(KeyboardInterrupt):
            tell_absent(federation, node)
            deadline, tick = Deadline(seconds), threading.Event()
            while not deadline.passed():
                tick.wait(min(SHOW_EVERY_S, deadline.left_s()))
                if json:
                    emit(_record_document(recording), text="", as_json=True)
                elif on_terminal:
                    sys.stdout.write(f"\r{_line(recording)}  \x1b[K")
                    sys.stdout.flush()
        is_empty = not recording.counts.stored and not recording.positions
        if not is_empty:
            if on_terminal:
                sys.stdout.write("\r\x1b[K")
            emit(_record_document(recording) | {"ended": True}, text=_summary(recording), as_json=json)
        if recording.error:
            raise StorageError(f"not everything was written: {recording.error}")
        if recording.store is not None and recording.store.counts.waiting:
            waiting = plural(recording.store.counts.waiting, "sample")
            raise StorageError(f"{waiting} not sent to {recording.store.url} yet; {recording.path} keeps them")
        if is_empty:
            raise no_sample(recording, federation)


@federated(asks=False)
def watch(
    federation: Federation,
    *,
    node: NodesOption = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="Only this group: host, jobs, gpu or user; repeatable."),
    ] = None,
    interval: IntervalOption = None,
    metric: MetricsOption = None,
    sort: Annotated[Literal["worst", "name"], typer.Option(help="Which rows come first.")] = "worst",
    absent: Annotated[
        bool, typer.Option("--absent", help="At the end, list all missing metrics with reasons.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many samples.")] = None,
    seconds: ForOption = None,
    json: LinesOption = False,
) -> None:
    """Watch live metrics: tables on a terminal (keys q, s and a), with --json one document a sample."""
    from fedmon.researcher.cli.readings import WatchState
    from fedmon.researcher.cli.screen import CHOSEN, GROUPS
    from fedmon.researcher.cli.terminal import draw

    if unknown := set(group or ()) - GROUPS.keys():
        raise InvalidInputError(f"--group {min(unknown)!r} is not one of {', '.join(GROUPS)}")
    groups = [GROUPS[name] for name in dict.fromkeys(group or GROUPS)] if group or not metric else [CHOSEN]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminal is given back as it was
    has_quit = False
    with (
        federation,
        federation.monitor(nodes=node, interval_s=interval, metrics=metric) as watching,
    ):
        if json:
            with contextlib.suppress(KeyboardInterrupt):
                for _ in _take(watching, lambda sample: emit(sample, text="", as_json=True), seconds, count):
                    pass
        else:
            state = WatchState()
            taken = _take(watching, state.take, seconds, count)
            has_quit = draw(taken, watching, state, groups, worst_first=sort == "worst")
            if absent:
                for one in state.absent(watching.capabilities):
                    typer.echo(f"{one.metric} on {', '.join(one.nodes)}: {one.reason}")
        if not watching.delivered and not has_quit:
            paces = [reply.interval_s for reply in watching.capabilities.values()]
            raise no_sample(watching, federation, pace_s=max(paces, default=None))


@federated(asks=False)
def serve(
    federation: Federation,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = METRICS_PORT,
    node: NodesOption = None,
    metric: MetricsOption = None,
    interval: IntervalOption = None,
    seconds: ForOption = None,
    json: JsonOption = False,
) -> None:
    """Serve the newest values of all nodes as OpenMetrics; a node that falls silent disappears."""
    from fedmon.researcher.cli.metrics import serve_newest

    choice = {"nodes": node, "metrics": metric, "interval_s": interval}
    serve_newest(federation, choice, host=host, port=port, seconds=seconds, as_json=json)


def _finish(federation: Federation, outcomes: Outcomes[Any], *, as_json: bool, code: int = 0) -> None:
    """Show outcomes, and end with ``code`` if all expected nodes answered."""
    emit(outcomes_document(federation, outcomes), text=outcomes, as_json=as_json)
    raise typer.Exit(exit_code(outcomes) or code)


# --- record -----------------------------------------------------------------------------------------------------------


def _record_document(recording: Record) -> dict[str, Any]:
    positions = {str(node): dict(streams) for node, streams in recording.positions.items()}
    document = {"path": str(recording.path), **msgspec.structs.asdict(recording.counts)}
    if recording.store is not None:
        document["store"] = {"url": recording.store.url, **msgspec.structs.asdict(recording.store.counts)}
    return document | {"losses": recording.losses, "refusals": recording.refusals, "positions": positions}


def _line(recording: Record) -> str:
    counts = recording.counts
    backfilled = f" ({counts.late} backfilled)" if counts.late else ""
    stored = f"{counts.stored} samples{backfilled}, {plural(counts.nodes, 'node')}"
    line = f"{stored}, {counts.lost} lost, {counts.pending} pending, {size(counts.size_bytes)}"
    return line if recording.store is None else f"{line}; {_store_line(recording.store.counts)}"


def _store_line(counts: StoreCounts) -> str:
    dropped = f", {counts.dropped} dropped" if counts.dropped else ""
    return f"{counts.sent} sent on, {counts.waiting} waiting{dropped}"


def _summary(recording: Record) -> str:
    lines = [f"{recording.path}: {_line(recording)}"]
    if recording.store is not None and recording.store.counts.error:
        lines.append(f"  {recording.store.counts.error}")
    lines += [f"  {number} lost: {reason}" for reason, number in recording.losses.items()]
    lines += [f"  {node}: {reason}" for node, reason in recording.refusals.items()]
    return "\n".join(map(escape_control, lines))


# --- watch ------------------------------------------------------------------------------------------------------------


def _take(
    watching: Watch, take: Callable[[LiveSample], object], seconds: float | None, count: int | None
) -> Iterator[None]:
    """Take samples until there are enough or the time is over; yields a few times a second at least."""
    deadline, left = Deadline(seconds), count
    while not deadline.passed() and left != 0:
        sample = watching.next(timeout_s=min(KEYS_S, deadline.left_s()))
        if sample is not None:
            take(sample)
            left = None if left is None else left - 1
        yield
