"""What a run left in its folder: traces with sizes, what jobs reported, and recordings of what nodes measured."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.experiment.journal import DOCUMENT, NAME

if TYPE_CHECKING:
    from fedmon.report.source import Source

MAX_POINTS = 500
MAX_FILES = 2000
"""So many files of a run are listed."""
_RECORDINGS = (".sqlite", ".fmr")
_NO_TRACES = frozenset({NAME, DOCUMENT})
_OF_SQLITE = ("-wal", "-shm", "-journal")


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a resource wrote, or, with ``collected``, that was collected of one; ``path`` is within the run."""

    guid: int
    path: str
    size_bytes: int
    collected: bool = False


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one name that came one after the other: of a resource, and of a node where one reported them.

    ``points`` are some of them, evenly, for a drawing: when each came, in Unix seconds, and the number.
    """

    guid: int
    node: str
    name: str
    count: int
    first: float
    last: float
    low: float
    high: float
    points: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, guid: int, node: str, name: str, points: Sequence[tuple[float, float]]) -> Series:
        """Sum up numbers with their times; there is one at least."""
        kept = [value for _, value in points]
        step = -(-len(points) // MAX_POINTS)
        return cls(
            guid=guid,
            node=node,
            name=name,
            count=len(kept),
            first=kept[0],
            last=kept[-1],
            low=min(kept),
            high=max(kept),
            points=tuple(points[::step]),
        )


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording tells, energy among it; ``problem`` says why it tells nothing."""

    guid: int
    path: str
    nodes: tuple[str, ...] = ()
    findings: tuple[Any, ...] = ()
    problem: str = ""


def traces_in(folder: Path, guids: Iterable[int]) -> list[TraceFile]:
    """Return what the resources of a run wrote, and what was collected of them, at most `MAX_FILES`."""
    known = set(guids)
    found = []
    for path, size_bytes in _files(folder):
        within = path.relative_to(folder)
        if within.parts[0].isdigit() and int(within.parts[0]) in known and len(within.parts) > 1:
            found.append(TraceFile(guid=int(within.parts[0]), path=str(within), size_bytes=size_bytes))
        elif (head := within.name.partition(".")[0]).isdigit() and int(head) in known:
            found.append(TraceFile(guid=int(head), path=str(within), size_bytes=size_bytes, collected=True))
        if len(found) == MAX_FILES:
            break
    return sorted(found, key=lambda each: (each.guid, each.collected, each.path))


def reported_in(folder: Path, traces: Iterable[TraceFile]) -> list[Series]:
    """Return what plans reported, by job, node and name. Lines that are none of ours are passed over."""
    found: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for trace in traces:
        if trace.collected or Path(trace.path).name != "scalars":
            continue
        for node, t, values in _scalars(folder / trace.path):
            for name, value in values.items():
                if isinstance(value, int | float):
                    found.setdefault((trace.guid, node, name), []).append((t, float(value)))
    return [Series.of(guid, node, name, values) for (guid, node, name), values in sorted(found.items())]


def recordings_in(folder: Path, traces: Iterable[TraceFile], began: Mapping[int, float]) -> list[Recorded]:
    """Return what the recordings of a run tell from when their resources ``began``, in Unix seconds, by guid."""
    return [
        _recorded(folder, trace, began.get(trace.guid))
        for trace in traces
        if not trace.collected and Path(trace.path).suffix in _RECORDINGS and trace.size_bytes
    ]


def _recorded(folder: Path, trace: TraceFile, began: float | None) -> Recorded:
    from fedmon.report.extra import report_extra

    try:
        with report_extra("what a recording tells"):
            from fedmon.report.findings import find
            from fedmon.report.source import Source
            from fedmon.report.subject import choose

            with Source([folder / trace.path]) as source:
                # A recording begins with the last sample before, taken at another pace: no part of what was watched.
                # Where the clock of a node is far off, all of its samples are.
                is_within = began is not None and all(_last(source, host.node_id) > began for host in source.hosts)
                case = choose(source, since_t=began if is_within else None).read()
    except FedmonError as error:
        return Recorded(guid=trace.guid, path=trace.path, problem=str(error))
    return Recorded(
        guid=trace.guid,
        path=trace.path,
        nodes=tuple(node.name for node in case.nodes),
        findings=tuple(find(case)),
    )


def _last(source: Source, node_id: str) -> float:
    return max((one.last_t for one in source.streams if one.node_id == node_id), default=0.0)


def _scalars(path: Path) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    one = msgspec.json.decode(line)
                except (msgspec.DecodeError, RecursionError):
                    continue
                t = one.get("t", 0.0) if isinstance(one, dict) else None
                if isinstance(t, int | float) and isinstance(one.get("values"), dict):
                    yield str(one.get("node", "")), t, one["values"]
    except OSError:
        return


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(where) / name
            if name.startswith(".") or name.endswith(_OF_SQLITE) or (where == str(folder) and name in _NO_TRACES):
                continue
            try:
                about = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode):
                yield path, about.st_size
