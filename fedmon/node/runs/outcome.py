"""The outcome of a job as it leaves its node: the report under the owner's policy, and the result."""

from __future__ import annotations

import builtins
import hashlib
import logging
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from fedmon.common import errors
from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.files import storage_errors
from fedmon.common.http import RepositoryError, download_to, upload_from
from fedmon.common.log import without_paths
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.text import shorten
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.runs import JobReport, JobState, Parcel, Problem
from fedmon.plan.parcels import contents

WITHHELD = (
    "the owner of this node lets no output and no error texts of jobs leave "
    "(job_output in [policy] is false; the owner would allow it with: fedmon node policy allow --job-output)"
)
INLINE_BYTES = MAX_PAYLOAD_BYTES - 12_000
"""The room for a result in a message; the rest is for its job."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between the tries to store a result; after the last it is held."""
_TRANSFER_S = 600.0
_NUMPY = (
    "exceptions.AxisError", "exceptions.ComplexWarning", "exceptions.DTypePromotionError", "exceptions.TooHardError",
    "linalg.LinAlgError", "ma.core.MAError", "ma.core.MaskError",
    *(
        f"{core}._exceptions.{name}"
        for core in ("_core", "core")
        for name in ("UFuncTypeError", "_ArrayMemoryError", "_UFuncNoLoopError", "_UFuncBinaryResolutionError",
                     "_UFuncCastingError", "_UFuncInputCastingError", "_UFuncOutputCastingError")
    ),
)  # fmt: skip
_KNOWN_TYPES = frozenset(
    {
        *(
            name
            for module in (builtins, errors)
            for name, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, BaseException)
        ),
        *("NoPlanError", "InvalidValuesError", "TooLargeError", "ChannelClosedError"),
        *(f"numpy.{name}" for name in _NUMPY),
    }
)
"""Types of errors as a plan's process names them. Other names stay here: a plan can claim any name."""
_MAX_TEXT = 4_000
"""Characters of each text of a job in a message, where a control character takes six bytes."""
_UNNAMED = "Exception"
_CHANGED = "the result differs from the one of the plan"
T = TypeVar("T")

logger = logging.getLogger(__name__)


class NoRepositoryError(FedmonError):
    """A result is too large for a message, and the node has no file repository."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"the result has {size_bytes} bytes, too many for a message, and this node has no file repository: its "
            "owner would name one with `url` in [repository], or you return less"
        )


def leaving(job: JobReport, *, output_leaves: bool) -> JobReport:
    """Return a job as its researcher may see it.

    If output does not leave, neither does the type of an error that is not built in, numpy's or fedmon's.
    """
    problem = job.problem
    # Paths of this machine are its owner's business.
    job = msgspec.structs.replace(job, reason=shorten(without_paths(job.reason), _MAX_TEXT))
    if output_leaves:
        kept = problem and Problem(
            type=problem.type, message=_end_of(problem.message), traceback=_end_of(problem.traceback)
        )
        return msgspec.structs.replace(job, problem=kept)
    kind = problem and Problem(type=problem.type if problem.type in _KNOWN_TYPES else _UNNAMED)
    named = f" ({kind.type})" if kind else ""
    if job.state is JobState.INVALID_RESULT:
        wrong = "the result of the plan cannot travel: a mapping of JSON values and plain arrays can"
        job = msgspec.structs.replace(job, reason=f"{wrong}{named}; {WITHHELD}")
    elif job.state is JobState.FAILED and named:
        job = msgspec.structs.replace(job, reason=f"the plan failed{named}; {WITHHELD}")
    return msgspec.structs.replace(job, problem=kind)


def _end_of(text: str | None) -> str | None:
    """Return the end of a long text: that of a traceback names the error."""
    return text if text is None or len(text) <= _MAX_TEXT else f"…{text[1 - _MAX_TEXT :]}"


def fitting(members: Iterable[T], budget: int) -> list[T]:
    """Return the first members that fit into ``budget`` bytes of JSON, at least one."""
    page: list[T] = []
    size = 0
    for member in members:
        size += len(msgspec.json.encode(member)) + 1
        if page and size > budget:
            break
        page.append(member)
    return page


def inline(path: Path, parcel: Parcel) -> Parcel | None:
    """Return the result in a file with its bytes, None if it does not fit into a message.

    Raises StorageError, and InvalidInputError for other bytes than those that the keeper checked.
    """
    if parcel.size_bytes > INLINE_BYTES:
        return None
    with storage_errors(path, "read the result"):
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != parcel.sha256:
        raise InvalidInputError(_CHANGED)
    whole = parcel.carrying(content)
    return whole if len(msgspec.json.encode(whole)) <= INLINE_BYTES else None


def store_result(
    path: Path, parcel: Parcel, repository: Callable[[], RepositorySettings], stopping: threading.Event
) -> Parcel:
    """Store a result that its keeper checked, if need be later, and return it with its URL. Raises FedmonError."""
    for pause_s in PAUSES_S:
        try:
            return _stored(path, parcel, repository())
        except RepositoryError as error:
            logger.warning("the result %s is stored later: %s", path, error)
            if stopping.wait(pause_s):
                raise
    return _stored(path, parcel, repository())


def _stored(path: Path, parcel: Parcel, repository: RepositorySettings) -> Parcel:
    """Return the result with the URL that it has in the repository from now on.

    Raises FedmonError, and OSError for a file that cannot be read.
    """
    if repository.url is None:
        raise NoRepositoryError(parcel.size_bytes)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != parcel.sha256:
            raise InvalidInputError(_CHANGED)
        url = upload_from(file, repository, sha256=parcel.sha256, deadline_s=_TRANSFER_S)
    try:
        return msgspec.convert({**msgspec.structs.asdict(parcel), "url": url}, Parcel)
    except msgspec.ValidationError as error:
        raise FedmonError(f"the repository gave the result a URL that cannot be used: {error}") from None


def fetch_inputs(parcel: Parcel, folder: Path, *, max_bytes: int, allowed_urls: Sequence[str]) -> int:
    """Fetch the inputs at a parcel's URL, and return a descriptor of their checked content; the caller closes it.

    Raises RepositoryError if it cannot or may not be fetched, InvalidInputError if it is no parcel, and StorageError.
    """
    with storage_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            download_to(
                file,
                parcel.url or "",
                sha256=parcel.sha256,
                size_bytes=parcel.size_bytes,
                max_bytes=max_bytes,
                deadline_s=_TRANSFER_S,
                allowed_urls=allowed_urls,
            )
            file.flush()
            try:
                # An empty file cannot be mapped.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if parcel.size_bytes else b""
                contents(parcel.format, memoryview(mapped))
            except InvalidInputError as problem:
                raise InvalidInputError(f"the inputs cannot be used: {problem}") from None
            return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
