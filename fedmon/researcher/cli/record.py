"""`fedmon record`: every sample into a store, until the time is over or Ctrl-C or SIGTERM comes."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.common.metrics.table import format_value
from fedmon.researcher.cli.options import (
    BrokerOption,
    IdOption,
    LinesOption,
    NodesOption,
    SettingsOption,
    opened,
)
from fedmon.researcher.cli.output import emit_line, verdict

if TYPE_CHECKING:
    from fedmon.researcher.samples.record import Record, RecordCounts

SHOW_EVERY_S = 1.0


def record(
    path: Annotated[Path, typer.Argument(help="The store: made where there is none, else continued where it ended.")],
    node: NodesOption = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="Only these metrics, with * and ?; may be repeated.")
    ] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between samples; without it each owner's.")] = None,
    history: Annotated[
        float, typer.Option(min=0, help="Of nodes not in the store yet, begin so many seconds back.")
    ] = 3600.0,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.1, help="Seconds to go on; without it until Ctrl-C.")
    ] = None,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    json: LinesOption = False,
) -> None:
    """Keep every sample in a store, in order and without a hole; what was missed is asked for again."""
    # From here on both end the record in order: whatever came is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with opened(broker, settings, researcher, 5.0) as federation:
        recording = federation.record(path, nodes=node or None, metrics=metric, interval_s=interval, history_s=history)
        try:
            _show(recording, Deadline(seconds if seconds is not None else 10**9), as_json=json)
        except KeyboardInterrupt:
            pass
        finally:
            recording.stop()
        counts = recording.counts
        if counts.stored or recording.positions:
            _clear(as_json=json)
            emit_line(_document(recording) | {"ended": True}, text=_summary(recording, counts), as_json=json)
        if recording.error:
            raise StorageError(f"not everything was written: {recording.error}")
        if not counts.stored and not recording.positions:
            raise verdict(recording, federation)


def _show(recording: Record, deadline: Deadline, *, as_json: bool) -> None:
    """Show how it goes on until the time is over."""
    tick = threading.Event()
    while not deadline.passed():
        tick.wait(min(SHOW_EVERY_S, deadline.left_s()))
        if as_json:
            emit_line(_document(recording), text="", as_json=True)
        elif sys.stdout.isatty():
            sys.stdout.write(f"\r{_line(recording.counts)}  \x1b[K")
            sys.stdout.flush()


def _clear(*, as_json: bool) -> None:
    if not as_json and sys.stdout.isatty():
        sys.stdout.write("\r\x1b[K")


def _document(recording: Record) -> dict[str, Any]:
    positions = {str(node): dict(streams) for node, streams in recording.positions.items()}
    document = {"path": str(recording.path), **msgspec.structs.asdict(recording.counts)}
    return document | {"losses": recording.losses, "refusals": recording.refusals, "positions": positions}


def _line(counts: RecordCounts) -> str:
    nodes = "1 node" if counts.nodes == 1 else f"{counts.nodes} nodes"
    return (
        f"{counts.stored} samples, {nodes}, {counts.late} late, {counts.lost} lost, {counts.pending} pending, "
        f"{_bytes(counts.size_bytes)}"
    )


def _summary(recording: Record, counts: RecordCounts) -> str:
    lines = [f"{recording.path}: {_line(counts)}"]
    lines += [f"  {number} lost: {reason}" for reason, number in recording.losses.items()]
    lines += [f"  {node} refused: {reason}" for node, reason in recording.refusals.items()]
    return "\n".join(lines)


def _bytes(size: int) -> str:
    return format_value("host_memory_total_bytes", float(size))
