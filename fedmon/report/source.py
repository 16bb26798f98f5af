"""Recordings that are read together: a job's, one for each of its hosts, or a researcher's store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.files import Closing, at_home, storage_errors, target_of
from fedmon.common.store.recording import LostRange, Mark, RecordedStream, Recording
from fedmon.common.store.recording_file import Key
from fedmon.common.store.recording_reader import CALENDAR, RecordingRows, RowSelection
from fedmon.common.store.seq_ranges import SeqRanges
from fedmon.report.blocks import LARGEST, Block, Damage, read_blocks

JOB = "job-"
"""A stream of a job is named after it."""
HOST = "host"
"""The stream of a machine."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one node, the newest of each kind.

    ``name`` is its host name if no other node has it, else its id. ``labels`` are the owner's words
    for the run (system, partition, env, name), ``jobs`` the facts about each job by its id. Nodes with the same
    ``machine`` run on one machine; empty is unknown.
    """

    node_id: str
    name: str
    machine: str = ""
    hardware: dict[str, Any] = {}
    capabilities: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    jobs: dict[str, dict[str, Any]] = {}
    tool: dict[str, Any] = {}


_SUFFIX = ".fmr"
_PLACES = (f"*{_SUFFIX}", f"recordings/*{_SUFFIX}", f"**/*{_SUFFIX}")


def files_of(paths: Iterable[Path | str]) -> list[Path]:
    """Return these files, and the recordings of folders among them, merged ones first; raises as Source."""
    found: dict[Path, None] = {}
    for path in map(at_home, paths):
        with storage_errors(path, "read"):
            is_there, is_folder = path.exists(), path.is_dir()
        if is_folder:
            inside = next((files for place in _PLACES if (files := sorted(path.glob(place)))), [])
            if not inside:
                raise NotFoundError(f"no recording in the folder {path}: nothing in it ends in {_SUFFIX}")
            found |= dict.fromkeys(inside)
        elif is_there:
            found[path] = None
        else:
            raise NotFoundError(f"recording {path} not found")
    return list(found)


Paths = Iterable[Path | str] | Path | str
"""Recordings, and folders of them."""


class Source(Closing):
    """Reads recordings as one: files, and those in folders such as a job's; samples in several of them come once.

    A context manager, for one thread. Raises NotFoundError for a path that is not there and for a folder without a
    recording, and StorageError when a recording cannot be read.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths = files_of([paths] if isinstance(paths, Path | str) else paths)
        if not self.paths:
            raise InvalidInputError("name at least one recording")
        self._recordings: list[Recording] = []
        self._holders: dict[Key, dict[int, RecordedStream]] = {}
        self.damage = Damage()
        try:
            for path in self.paths:
                self._recordings.append(Recording(path, read_only=True))
            self.readers: list[RecordingRows] = [recording.rows for recording in self._recordings]
            self.streams: list[RecordedStream] = []
            for number, recording in enumerate(self._recordings):
                for stream in recording.extents():
                    self.streams.append(self._timed(stream, recording.rows))
                    self._holders.setdefault((stream.node_id, stream.stream, stream.boot), {})[number] = stream
            self.keys = sorted(self._holders)
            self.hosts = self._hosts()
        except BaseException:
            self.close()
            raise

    def target(self, path: Path | str) -> Path:
        """Return a file to write. Raises InvalidInputError if it cannot be, or would replace a recording."""
        place = target_of(Path(path))
        if place.exists() and any(place.samefile(one) for one in self.paths):
            raise InvalidInputError(f"{path} is the recording itself: name another file to write")
        return at_home(path)

    def close(self) -> None:
        """Close the files; safe to call twice."""
        for recording in self._recordings:
            recording.close()

    @property
    def job_ids(self) -> list[str]:
        """Name the jobs of which there are samples."""
        return sorted({one.stream.removeprefix(JOB) for one in self.streams if one.stream.startswith(JOB)})

    def blocks(
        self,
        *,
        streams: Container[tuple[str, str]] | None = None,
        series: Callable[[str], bool] | None = None,
        since_t: float | None = None,
        until_t: float | None = None,
    ) -> Iterator[Block]:
        """Return samples as arrays, by node, stream, boot and number.

        ``streams`` are nodes with a stream each (default: all), ``series`` says which series are wanted.
        """
        selection = RowSelection(since_t=since_t, until_t=until_t, series=series)
        for key in self.keys:
            if streams is None or key[:2] in streams:
                yield from read_blocks(self.readers_of(key), key, selection, self.damage)

    def marks(self) -> list[Mark]:
        """Return the events, by time."""
        found = {mark for recording in self._recordings for mark in recording.marks()}
        return sorted(found, key=lambda mark: (mark.t, mark.node_id, mark.text))

    def lost(self, node_id: str, stream: str, boot: int) -> list[LostRange]:
        """Return the samples of a stream that none of the recordings has or will get, or that were damaged, and why."""
        holders = self._holders[node_id, stream, boot]
        known = SeqRanges(each for held in holders.values() for each in held.ranges)
        found = [LostRange(first_seq=first, last_seq=last, reason="damaged in the recording")
                 for key, first, last in self.damage.ranges() if key == (node_id, stream, boot)]  # fmt: skip
        for number in holders:
            for lost in self._recordings[number].lost(node_id, boot, stream):
                absent = known.absent(lost.first_seq, lost.last_seq)
                found += [msgspec.structs.replace(lost, first_seq=low, last_seq=high) for low, high in absent]
                known.add(lost.first_seq, lost.last_seq)
        return found

    def readers_of(self, key: Key) -> list[RecordingRows]:
        """Return the recordings that hold something of a stream, row by row."""
        return [self.readers[number] for number in self._holders.get(key, ())]

    @staticmethod
    def _timed(stream: RecordedStream, rows: RecordingRows) -> RecordedStream:
        """Return a stream with its earliest and latest time: where the clock was set these are not its end's."""
        reaches = rows.reaches((stream.node_id, stream.stream, stream.boot))
        times = [*(one.low_t for one in reaches), *(one.high_t for one in reaches)] or [stream.oldest_t, stream.last_t]
        dated = np.clip(times, *CALENDAR).tolist()
        return msgspec.structs.replace(stream, oldest_t=min(dated), last_t=max(dated))

    def _hosts(self) -> list[Host]:
        known: dict[str, dict[str, Any]] = {stream.node_id: {} for stream in self.streams}
        said = [one for recording in self._recordings for one in recording.descriptions()]
        for one in sorted(said, key=lambda one: one.boot):
            document = known.setdefault(one.node_id, {})
            for name, value in one.document.items():
                if isinstance(value, dict) and isinstance(before := document.get(name), dict):
                    runs = {job: _of_runs(before.get(job), told) for job, told in value.items()}
                    document[name] = before | (runs if name == "jobs" else value)
                elif value not in (None, "", [], {}):
                    document[name] = value
        names = Counter(told for document in known.values() if isinstance(told := document.get("hostname"), str))
        hosts: list[Host] = []
        for node_id, document in sorted(known.items()):
            hostname, hardware = document.get("hostname"), document.get("hardware")
            boot_id = hardware.get("boot_id") if isinstance(hardware, dict) else None
            hosts.append(
                Host(
                    node_id=node_id,
                    name=hostname if isinstance(hostname, str) and names[hostname] == 1 else node_id,
                    machine=f"{boot_id} {hostname or ''}" if boot_id else "",
                    **{key: document[key] for key in _KNOWN if isinstance(document.get(key), dict)},
                )
            )
        return hosts


def _of_runs(before: Any, last: Any) -> Any:
    """Return the description of a job by its last run on a host, with start and failure of those before, if any.

    Runs before the job was requeued do not count: SLURM starts it at another time.
    """
    runs = [run for run in (before, last) if isinstance(run, dict)]
    if len(runs) < 2 or len({told_number(run, "starts_at") for run in runs} - {None}) > 1:
        return last
    is_same = before.get("ended") == last.get("ended")  # in two recordings
    failed = (not is_same and before.get("exit_code")) or before.get("failed_before")
    return last | {"started": before.get("started") or last.get("started"), "failed_before": failed}


def told_number(told: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a description, which a node may have written; None for anything else."""
    value = told.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
        return float(value)
    return None


_KNOWN = ("hardware", "capabilities", "labels", "jobs", "tool")


def opened(source: Source | Paths) -> AbstractContextManager[Source]:
    """Return a source as it is, or recordings as one that is closed at the end; raises as `Source`."""
    return nullcontext(source) if isinstance(source, Source) else Source(source)
