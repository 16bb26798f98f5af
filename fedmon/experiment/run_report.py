"""The report of a run: its resources with states and times, what failed and why, what was measured and written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fedmon.experiment.attributes import MASK, Flags
from fedmon.experiment.errors import UnknownTypeError
from fedmon.experiment.events import AnyEvent, Measured
from fedmon.experiment.following import Follower
from fedmon.experiment.run_files import (
    Recorded,
    Series,
    TraceFile,
    recordings_in,
    reported_in,
    traces_in,
)
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.standing import Overview, followed
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types import ResourceFactory


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a run. ``values`` are attributes that resources set by themselves, such as outcomes.

    ``measured`` is what conditions asked for, ``reported`` what plans reported.
    """

    overview: Overview
    values: dict[int, dict[str, Any]]
    measured: tuple[Series, ...]
    reported: tuple[Series, ...]
    recordings: tuple[Recorded, ...]
    traces: tuple[TraceFile, ...]


def report_on(run_dir: str | Path) -> tuple[RunReport, State]:
    """Return the report of a run, also of one that goes on, and its state. Raises NotFoundError and StorageError."""
    values: dict[tuple[int, str], list[tuple[float, float]]] = {}

    def take(event: AnyEvent) -> None:
        if isinstance(event, Measured) and event.value is not None:
            values.setdefault((event.guid, event.name), []).append((event.t, event.value))

    with Follower(run_dir, on_event=take) as follower:
        shown = followed(follower, follower.names(), time.time())
        state, folder = follower.state, follower.folder
    traces = traces_in(folder, state.resources)
    began = {each.guid: t for each in shown.resources if (t := each.times.get(ResourceState.STARTED.name)) is not None}
    return RunReport(
        overview=shown,
        values={guid: found for guid, one in sorted(state.resources.items()) if (found := dict(_own_values(one)))},
        measured=tuple(Series.of(guid, "", name, numbers) for (guid, name), numbers in sorted(values.items())),
        reported=tuple(reported_in(folder, traces)),
        recordings=tuple(recordings_in(folder, traces, began)),
        traces=tuple(traces),
    ), state


def _own_values(resource: Resource) -> Iterator[tuple[str, Any]]:
    """Return what a resource set by itself; of a type that is not known here, nothing."""
    try:
        attributes = ResourceFactory.get_resource_type(resource.rtype).get_attributes()
    except UnknownTypeError:
        return
    for each in attributes:
        value = each.from_note(resource.attributes.get(each.name))
        if each.has_flag(Flags.NoWrite) and not each.is_masked and value not in (None, "", MASK):
            yield each.name, value
