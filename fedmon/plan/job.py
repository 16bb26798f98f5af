"""What a plan is handed on its descriptors: the job, the source and the inputs."""

from __future__ import annotations

# `os` takes several milliseconds to import where nothing has done so yet, and these are the same functions.
import posix

from fedmon.plan.dataset import Dataset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

JOB, SOURCE, INPUTS, CHANNEL = 3, 4, 5, 6
"""The descriptors of a plan's process: three to read, and one to write frames into."""
_CHUNK_BYTES = 1 << 20


def read_job(descriptor: int) -> dict[str, Any]:
    """Return the job, an object of JSON that the node wrote."""
    text = read_all(descriptor).decode().strip()
    try:
        return _scanned(text)
    except (ImportError, AttributeError, TypeError, StopIteration):
        import json

        job: dict[str, Any] = json.loads(text)
        return job


def _scanned(text: str) -> dict[str, Any]:
    # What json.loads calls in the end. The json module itself takes 15 ms to import, a third of what a plan may take
    # that does nothing; where Python has no such function, json does it.
    from _json import make_scanner

    job: dict[str, Any] = make_scanner(_Rules)(text, 0)[0]  # type: ignore[arg-type]  # it takes all that has these fields
    return job


class _Rules:
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float
    memo: dict[str, str] = {}  # noqa: RUF012 - Python's scanner fills and clears it


def read_all(descriptor: int) -> bytes:
    """Return all bytes behind a descriptor, from the first on where it can go back, and close it."""
    try:  # noqa: SIM105 - contextlib takes longer to import than this file
        posix.lseek(descriptor, 0, 0)
    except OSError:  # a pipe
        pass
    pieces = []
    while piece := posix.read(descriptor, _CHUNK_BYTES):
        pieces.append(piece)
    posix.close(descriptor)
    return b"".join(pieces)


def read_inputs(descriptor: int, inputs_format: str) -> dict[str, Any]:
    """Return the inputs; their arrays are the plan's own view of the bytes, copied where it writes to them.

    Raises InvalidValuesError.
    """
    import mmap

    from fedmon.plan.parcels import unpack

    if inputs_format == "json":
        return unpack("json", read_all(descriptor))
    buffer = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    posix.close(descriptor)
    return unpack(inputs_format, buffer)


def dataset_of(job: dict[str, Any]) -> Dataset | None:
    """Return the dataset of a job, or None where it has none."""
    given = job.get("dataset")
    if given is None:
        return None
    shape = given.get("shape")
    return Dataset(
        path=given["path"],
        dataset_id=given["dataset_id"],
        name=given["name"],
        data_type=given["data_type"],
        tags=given.get("tags") or [],
        shape=None if shape is None else tuple(shape),
        dtypes=given.get("dtypes"),
    )
