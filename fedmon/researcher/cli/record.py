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
from fedmon.researcher.cli.shell import (
    BrokerOption,
    IdOption,
    IntervalOption,
    LinesOption,
    MetricsOption,
    NodesOption,
    SettingsOption,
    emit_line,
    no_sample,
    opened,
)

if TYPE_CHECKING:
    from fedmon.researcher.samples.record import Record, RecordCounts

SHOW_EVERY_S = 1.0


def record(
    path: Annotated[Path, typer.Argument(help="The store: made where there is none, else continued where it ended.")],
    node: NodesOption = None,
    metric: MetricsOption = None,
    interval: IntervalOption = None,
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
    # From here on both end the record in order: all received samples are written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    on_terminal = not json and sys.stdout.isatty()
    with opened(broker, settings, researcher, 5.0) as federation:
        recording = federation.record(path, nodes=node or None, metrics=metric, interval_s=interval, history_s=history)
        try:
            deadline, tick = Deadline(seconds if seconds is not None else 10**9), threading.Event()
            while not deadline.passed():
                tick.wait(min(SHOW_EVERY_S, deadline.left_s()))
                if json:
                    emit_line(_document(recording), text="", as_json=True)
                elif on_terminal:
                    sys.stdout.write(f"\r{_line(recording.counts)}  \x1b[K")
                    sys.stdout.flush()
        except KeyboardInterrupt:
            pass
        finally:
            recording.stop()
        is_empty = not recording.counts.stored and not recording.positions
        if not is_empty:
            if on_terminal:
                sys.stdout.write("\r\x1b[K")
            emit_line(_document(recording) | {"ended": True}, text=_summary(recording), as_json=json)
        if recording.error:
            raise StorageError(f"not everything was written: {recording.error}")
        if is_empty:
            raise no_sample(recording, federation)


def _document(recording: Record) -> dict[str, Any]:
    positions = {str(node): dict(streams) for node, streams in recording.positions.items()}
    document = {"path": str(recording.path), **msgspec.structs.asdict(recording.counts)}
    return document | {"losses": recording.losses, "refusals": recording.refusals, "positions": positions}


def _line(counts: RecordCounts) -> str:
    nodes = "1 node" if counts.nodes == 1 else f"{counts.nodes} nodes"
    size = format_value("host_memory_total_bytes", float(counts.size_bytes))
    return f"{counts.stored} samples, {nodes}, {counts.late} late, {counts.lost} lost, {counts.pending} pending, {size}"


def _summary(recording: Record) -> str:
    lines = [f"{recording.path}: {_line(recording.counts)}"]
    lines += [f"  {number} lost: {reason}" for reason, number in recording.losses.items()]
    lines += [f"  {node} refused: {reason}" for node, reason in recording.refusals.items()]
    return "\n".join(lines)
