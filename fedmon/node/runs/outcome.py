"""What of a job leaves its node: the report, cut to what the owner lets go, and the result, in a message or stored."""

from __future__ import annotations

import base64
import builtins
import contextlib
import hashlib
import logging
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from fedmon.common import errors
from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.http import RepositoryError, UrlRefusedError, download_to, upload_from
from fedmon.common.log import without_paths
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.runs import JobReport, JobState, Parcel, Problem
from fedmon.plan.parcels import check

WITHHELD = (
    "the owner of this node lets nothing leave of what jobs print, log or fail with "
    "(job_output in [policy] is false; the owner would allow it with: fedmon node policy allow --job-output)"
)
JOB_BYTES = 40_000
"""What a job may take in a message; a control character takes six bytes there."""
INLINE_BYTES = MAX_PAYLOAD_BYTES - 12_000
"""What a result may take in a message; the rest is for what is told of its job."""
AT_A_TIME = 4
"""Transfers in each direction; more wait, so that one slow server does not hold up all jobs, nor many the node."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between the tries to store a result; a repository that is away for longer loses it to the researcher."""
_TRANSFER_S = 600.0
_INPUTS = ".inputs"
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
"""Types of errors as a plan's process names them. A name says one of these, or nothing: a plan can claim any name."""
_MAX_TEXT = 16_384
_SHORTEST = 64
_UNNAMED = "Exception"

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NoRepositoryError(FedmonError):
    """A result is too large for a message, and there is nowhere else to put it."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"the result has {size_bytes} bytes, which no message holds, and this node has no file repository: its "
            "owner would name one with `url` in [repository], or you return less"
        )


def leaving(job: JobReport, *, output_leaves: bool) -> JobReport:
    """Return a job as it may be told to its researcher.

    Where output does not leave, neither does the type of an error that is not built in, numpy's or fedmon's.
    """
    # What the machine said of its files is its owner's.
    job = msgspec.structs.replace(job, reason=without_paths(job.reason))
    if output_leaves:
        return _fitting(job)
    if job.problem is None:
        kind, named = None, ""
    else:
        kind = Problem(type=job.problem.type if job.problem.type in _KNOWN_TYPES else _UNNAMED)
        named = f" ({kind.type})"
    if job.state is JobState.INVALID_RESULT:
        what = "what the plan returned cannot travel: a mapping of JSON values and plain arrays can"
        job = msgspec.structs.replace(job, reason=f"{what}{named}; {WITHHELD}")
    elif job.state is JobState.FAILED and named:
        job = msgspec.structs.replace(job, reason=f"the plan failed{named}; {WITHHELD}")
    return msgspec.structs.replace(job, problem=kind)


def _fitting(job: JobReport) -> JobReport:
    """Return a job that a message has room for, its texts shortened where they must be."""
    longest = _MAX_TEXT
    while len(msgspec.json.encode(job)) > JOB_BYTES and longest > _SHORTEST:
        longest //= 2
        problem = job.problem and Problem(
            type=job.problem.type,
            message=_shortened(job.problem.message, longest),
            traceback=_shortened(job.problem.traceback, longest),
        )
        job = msgspec.structs.replace(job, problem=problem, reason=_shortened(job.reason, longest) or "")
    return job


def _shortened(text: str | None, longest: int) -> str | None:
    if text is None or len(text) <= longest:
        return text
    # The end of a trace says what happened, its middle how it came there.
    return f"{text[: longest // 4]} ... {text[-(longest * 3 // 4) :]}"


def without_result(job: JobReport, problem: FedmonError) -> JobReport:
    """Return a job that ended well, and whose result does not reach who asked for it."""
    state = JobState.FAILED
    if isinstance(problem, NoRepositoryError):
        reason = str(problem)
    elif isinstance(problem, InvalidInputError):
        state, reason = JobState.INVALID_RESULT, "what the plan returned is no parcel of values and plain arrays"
    else:
        logger.error("the result of job %s stays in its folder: %s", job.job_id, problem)
        reason = "the result could not be stored in the node's file repository; its owner has it, and the log says why"
    return msgspec.structs.replace(job, state=state, reason=reason)


def inline(path: Path, parcel: Parcel, *, is_checked: bool = True) -> Parcel | None:
    """Return the result of a file with its bytes, None when no message would hold it.

    Raises StorageError, and, if it is to be checked here, InvalidInputError unless it is the announced result, and one
    that cannot do harm.
    """
    if parcel.size_bytes > INLINE_BYTES:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"the result {path} cannot be read: {error.strerror}") from error
    if not is_checked:
        if (hashlib.sha256(content).hexdigest(), len(content)) != (parcel.sha256, parcel.size_bytes):
            raise InvalidInputError("the result is not what the plan handed over")
        check(parcel.format, content, parcel.size_bytes)
    if parcel.format == "json":
        whole = msgspec.structs.replace(parcel, json=content.decode())
    else:
        whole = msgspec.structs.replace(parcel, base64=base64.b64encode(content).decode())
    return whole if len(msgspec.json.encode(whole)) <= INLINE_BYTES else None


class Transfers:
    """Inputs are fetched and results stored beside everything else, AT_A_TIME in each direction.

    ``done`` of a transfer is called on the worker's thread, by ``hand_over``, with what came of it.
    """

    def __init__(self, repository: RepositorySettings, *, hand_over: Callable[[Callable[[], None]], object]) -> None:
        self.repository = repository
        self._hand_over = hand_over
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._waiting = {name: deque[Callable[[], None]]() for name in ("inputs", "results")}
        self._running = {"inputs": 0, "results": 0}

    def fetch(self, parcel: Parcel, folder: Path, *, max_bytes: int, done: Callable[[int | FedmonError], None]) -> None:
        """Fetch inputs; ``done`` gets a descriptor that it has to close."""
        urls = self.repository.allowed_urls
        self._do("inputs", lambda: _fetched(parcel, folder, max_bytes=max_bytes, allowed_urls=urls), done)

    def deliver(self, path: Path, parcel: Parcel, done: Callable[[Parcel | FedmonError], None]) -> None:
        """Store a result that no message holds, as its keeper checked it; ``done`` gets it with its URL."""
        self._do("results", lambda: self._stored(path, parcel), done)

    def stop(self) -> None:
        """Report no more results; unfinished transfers are repeated after the next start."""
        self._stopping.set()

    def _stored(self, path: Path, parcel: Parcel) -> Parcel:
        for pause_s in PAUSES_S:
            try:
                return _stored(path, parcel, self.repository)
            except UrlRefusedError:
                raise
            except RepositoryError as error:
                logger.warning("the result %s is stored later: %s", path, error)
                if self._stopping.wait(pause_s):
                    raise
        return _stored(path, parcel, self.repository)

    def _do(
        self, name: Literal["inputs", "results"], work: Callable[[], T], done: Callable[[T | FedmonError], None]
    ) -> None:
        def run() -> None:
            outcome: T | FedmonError
            try:
                outcome = work()
            except FedmonError as error:
                outcome = error
            except Exception:
                # Whoever waits for it must hear of its end, whatever that was.
                logger.exception("a transfer of %s failed", name)
                outcome = InvalidInputError(f"the {name} could not be transferred; the log of the node says why")
            if not self._stopping.is_set():
                self._hand_over(lambda: done(outcome))

        with self._lock:
            self._waiting[name].append(run)
            if self._running[name] >= AT_A_TIME:
                return
            self._running[name] += 1
        try:
            # A transfer may hang in name resolution beyond our reach: it must not keep a stopping node alive.
            threading.Thread(target=self._work, args=(name,), name=f"fedmon-runs-{name}", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._running[name] -= 1
            logger.warning("%s wait for the next transfer: %s", name, error)

    def _work(self, name: Literal["inputs", "results"]) -> None:
        while True:
            with self._lock:
                if self._stopping.is_set() or not self._waiting[name]:
                    self._running[name] -= 1
                    return
                run = self._waiting[name].popleft()
            run()


def _stored(path: Path, parcel: Parcel, repository: RepositorySettings) -> Parcel:
    """Return the result with the URL that it has in the repository from now on. Raises FedmonError."""
    if repository.url is None:
        raise NoRepositoryError(parcel.size_bytes)
    try:
        with path.open("rb") as file:
            url = upload_from(file, repository, sha256=parcel.sha256, deadline_s=_TRANSFER_S)
    except OSError as error:
        raise StorageError(f"the result {path} cannot be read: {error.strerror}") from error
    try:
        return msgspec.convert({**msgspec.structs.asdict(parcel), "url": url}, Parcel)
    except msgspec.ValidationError as error:
        raise FedmonError(f"the repository gave the result an address that cannot be used: {error}") from None


def _fetched(parcel: Parcel, folder: Path, *, max_bytes: int, allowed_urls: Sequence[str]) -> int:
    """Return a descriptor, for reading, of what lies at the parcel's URL, checked; the caller closes it.

    Raises RepositoryError when it cannot be fetched or is not allowed to be, InvalidInputError when it is no parcel,
    StorageError when it cannot be kept.
    """
    path = folder / _INPUTS
    with contextlib.ExitStack() as undo:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            written = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(written, "r+b") as file:
                read_only = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                undo.callback(os.close, read_only)
                path.unlink()
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
                check(parcel.format, _mapped(read_only), max_bytes)
        except OSError as error:
            raise StorageError(f"inputs cannot be kept in {folder}: {error.strerror}") from error
        except InvalidInputError as problem:
            raise InvalidInputError(f"the inputs cannot be used: {problem}") from None
        undo.pop_all()
    return read_only


def _mapped(descriptor: int) -> memoryview:
    """Return what an open file holds, without reading it; it stays mapped as long as this value lives."""
    # An empty file cannot be mapped.
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if os.fstat(descriptor).st_size else b"")
