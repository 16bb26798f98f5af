"""perfmon's JSON files: parallel lists for each host, written column by column."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.common.files import replacing, storage_errors
from fedmon.report.column_spool import ColumnSpool
from fedmon.report.source import Source
from fedmon.report.views.survey import Place
from fedmon.report.views.view_table import Section, ViewTable, read

SECONDS, EXACT = "time_stamps", "timestamps"
"""Whole seconds, as perfmon wrote them, and the exact time in Unix seconds under the key that its manual names."""
_TOP = ("host_names", "sampling_frequency", "labels")


def write_group(path: Path, source: Source, view: ViewTable) -> None:
    """Write one group as a file that appears whole or not at all; a value that is not known is null.

    At the top are ``host_names``, ``sampling_frequency``, which is the period in seconds, and ``labels``, then an
    object for each host. Raises InvalidInputError and StorageError.
    """
    keys = host_keys([section.name for section in view.sections])
    with _whole(path) as file:
        _write_top(file, keys, [section.place for section in view.sections])
        for key, section in zip(keys, view.sections, strict=True):
            file.write(b",\n" + msgspec.json.encode(key) + b": ")
            with ColumnSpool[int](path.parent) as spool:
                _write_host(file, source, section, spool)
        file.write(b"\n}\n")


def write_meta_data(path: Path, places: Sequence[Place]) -> None:
    """Write what is known of machines, jobs and the tool, as a file that appears whole or not at all."""
    keys = host_keys([place.host.name for place in places])
    with _whole(path) as file:
        _write_top(file, keys, places)
        for key, place in zip(keys, places, strict=True):
            known = {
                "hardware": place.host.hardware,
                "job": place.host.jobs.get(place.job or "", {}),
                "capabilities": place.host.capabilities,
                "tool": place.host.tool,
            }
            file.write(b",\n" + msgspec.json.encode(key) + b": " + msgspec.json.encode(known))
        file.write(b"\n}\n")


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears when it is complete; its folder is made."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, storage_errors(path), new.open("wb") as file:
        yield file


def host_keys(names: Sequence[str]) -> list[str]:
    """Return a key for each host that nothing else at the top has."""
    keys: list[str] = []
    for name in names:
        keys.append(next(key for key in _candidates(name) if key not in _TOP and key not in keys))
    return keys


def _candidates(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}~{number}"


def _write_top(file: BinaryIO, keys: Sequence[str], places: Sequence[Place]) -> None:
    labels: dict[str, str] = {}
    for place in places:
        labels |= {name: value for name, value in place.host.labels.items() if value}
    jobs = [place.job for place in places if place.job is not None]
    top = {
        "host_names": list(keys),
        "sampling_frequency": _period_s(places),
        "labels": ({"job_id": jobs[0]} if jobs else {}) | labels,
    }
    file.write(msgspec.json.encode(top)[:-1])


def _period_s(places: Sequence[Place]) -> float | None:
    """Return the distance of two samples: what the tool was told, else what it was."""
    for place in places:
        asked = place.host.tool.get("interval_s")
        if isinstance(asked, int | float):
            return _number(float(asked))
    return next((_number(place.interval_s) for place in places if place.interval_s is not None), None)


def _write_host(file: BinaryIO, source: Source, section: Section, spool: ColumnSpool[int]) -> None:
    for at, values in read(source, section):
        spool.add(-1, at.t)
        for number, one in enumerate(values):
            spool.add(number, one)
        spool.settle()
    tree: dict[str, Any] = {}
    for number, column in enumerate(section.columns):
        branch = tree
        for name in column.path[:-1]:
            branch = branch.setdefault(name, {})
        branch[column.path[-1]] = number
    file.write(b"{" + msgspec.json.encode(SECONDS) + b": ")
    _write_list(file, (np.floor(t).astype(np.int64).tolist() for t in spool.read(-1, np.float64)))
    file.write(b",\n " + msgspec.json.encode(EXACT) + b": ")
    _write_list(file, (np.round(t, 6).tolist() for t in spool.read(-1, np.float64)))
    for name, branch in tree.items():
        file.write(b",\n " + msgspec.json.encode(name) + b": ")
        _write_branch(file, branch, section, spool)
    file.write(b"}")


def _write_branch(file: BinaryIO, branch: Any, section: Section, spool: ColumnSpool[int]) -> None:
    if isinstance(branch, Mapping):
        for number, (name, inner) in enumerate(branch.items()):
            file.write((b", " if number else b"{") + msgspec.json.encode(name) + b": ")
            _write_branch(file, inner, section, spool)
        file.write(b"}")
        return
    is_whole = section.columns[branch].is_whole
    _write_list(file, (_listed(piece, is_whole=is_whole) for piece in spool.read(branch, np.float64)))


def _write_list(file: BinaryIO, pieces: Iterator[list[Any]]) -> None:
    file.write(b"[")
    separator = b""
    for piece in pieces:
        if piece:
            file.write(separator + msgspec.json.encode(piece)[1:-1])
            separator = b","
    file.write(b"]")


def _listed(values: NDArray[Any], *, is_whole: bool) -> list[float | int | None]:
    shown = np.round(values) if is_whole else np.round(values, 6)
    listed: list[float | int | None] = [None if value != value else value for value in shown.tolist()]  # noqa: PLR0124
    if is_whole:
        listed = [None if value is None else int(value) for value in listed]
    return listed


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value
