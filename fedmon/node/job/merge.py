"""All hosts' recordings of one job become one: nothing is lost, nothing comes twice, and a crash leaves the old one."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
from pathlib import Path

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_join import Joined, RecordingJoin
from fedmon.node.job.layout import FOLDER_MODE, RECORDING_SUFFIX, JobFolder

logger = logging.getLogger(__name__)

_STAGE = ".merge-"
_LEFT_BEHIND_S = 3600.0
"""A merge that has not touched its folder for so long was killed."""
_COPIES = 4
"""A file that is written meanwhile is copied so often until a copy is of one moment."""
_MOST_MISSING = 1000
"""A head that speaks of a file so many times as long is damaged itself."""
_LOG = "-wal"
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_SQLITE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY})


class MergedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one recording; ``problem`` says why some or all of it is not there."""

    path: Path
    samples: int = 0
    problem: str = ""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A merged recording, and what it was made of; ``kept`` samples were in the one before, and in no host's file."""

    path: Path
    files: tuple[MergedFile, ...]
    samples: int
    kept: int = 0


def merge(folder: JobFolder) -> Path:
    """Merge the recordings of all hosts and return the file that holds them; see `merge_hosts`."""
    return merge_hosts(folder).path


def merge_hosts(folder: JobFolder) -> Merged:
    """Merge the recordings of all hosts, of those that still write what they have so far, into one.

    It can be done again, and by several hosts at once: the same comes out. The hosts' files stay as they are. A file
    that is damaged is reported in the log, and what can be read of it is taken. Raises StorageError when the merged
    recording cannot be written; then the one before is still there.
    """
    stage = folder.path / f"{_STAGE}{os.urandom(8).hex()}"
    try:
        stage.mkdir(mode=FOLDER_MODE)
        _remove_left_behind(folder)
        files, kept = _join(folder, stage)
        _put_in_place(stage / folder.merged.name, folder.merged)
    except OSError as error:
        raise StorageError(f"cannot merge into {folder.merged}: {error.strerror}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    samples = sum(file.samples for file in files) + kept
    for file in files:
        if file.problem:
            logger.warning("%s: %s", file.path, file.problem)
    logger.info("merged %d samples of %d recordings into %s", samples, len(files), folder.merged)
    return Merged(path=folder.merged, files=tuple(files), samples=samples, kept=kept)


def host_recordings(folder: JobFolder) -> list[Path]:
    """Return the recordings that hosts of a job left, by name."""
    try:
        found = [each for each in folder.recordings.iterdir() if each.suffix == RECORDING_SUFFIX]
    except OSError:
        return []
    return sorted(each for each in found if each.is_file() and not each.is_symlink())


def _join(folder: JobFolder, stage: Path) -> tuple[list[MergedFile], int]:
    files: list[MergedFile] = []
    kept = 0
    with RecordingJoin(stage / folder.merged.name) as join:
        for path in host_recordings(folder):
            try:
                joined, problem = _add(join, path, stage)
                files.append(MergedFile(path=path, samples=joined.samples, problem=problem))
            except (StorageError, OSError) as error:
                _refuse_full_disk(error)
                files.append(MergedFile(path=path, problem=f"cannot be merged: {error}"))
        if folder.merged.exists():
            try:
                kept = _add(join, folder.merged, stage)[0].samples
            except (StorageError, OSError) as error:
                _refuse_full_disk(error)
                logger.warning("the merged recording of before is not readable, and made anew: %s", error)
        join.finish()
    return files, kept


def _add(join: RecordingJoin, path: Path, stage: Path) -> tuple[Joined, str]:
    """Add one recording; returns what became of it, and what is wrong with it, if anything."""
    copy = stage / "copy.fmr"
    is_whole = _copied(path, copy)
    _lengthen(copy)
    problem = "" if is_whole else "it was written to all the time: more may be there when it is merged again"
    try:
        # Opened as who writes does, so that a damaged one is recognised, and what can be read of it is taken over.
        with Recording(copy) as opened:
            is_damaged = opened.aside is not None
        joined = join.add(copy, check=is_damaged)
        if is_damaged:
            problem = f"damaged: {joined.samples} samples could be read"
        return joined, problem
    finally:
        for each in stage.glob("copy.fmr*"):
            each.unlink()


def _copied(path: Path, copy: Path) -> bool:
    """Copy a recording with its log; False when it changed meanwhile each time, so that the copy may be of two moments.

    A recording is never opened where another host may be writing it: what SQLite shares between processes is shared
    within one machine only.
    """
    for _ in range(_COPIES):
        before = _stamp(path)
        shutil.copyfile(path, copy)
        with contextlib.suppress(FileNotFoundError):
            copy.with_name(copy.name + _LOG).unlink()
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(path.with_name(path.name + _LOG), copy.with_name(copy.name + _LOG))
        if _stamp(path) == before:
            return True
    return False


def _lengthen(copy: Path) -> None:
    """Give a file that was cut off the length that it says it had: SQLite reads nothing at all of a shorter one.

    Source: the SQLite file format, section 1.3: page size at offset 16 (1 stands for 65536), pages at offset 28.
    """
    with copy.open("r+b") as file:
        head = file.read(32)
        if head.startswith(b"SQLite format 3\0") and len(head) == 32:
            page = int.from_bytes(head[16:18], "big")
            said = (65_536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
            if copy.stat().st_size < said <= _MOST_MISSING * copy.stat().st_size:
                file.truncate(said)


def _stamp(path: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes with a recording: its file and its log, each opened anew to ask the file server."""
    found: list[tuple[int, int, int] | None] = []
    for each in (path, path.with_name(path.name + _LOG)):
        try:
            with each.open("rb") as file:
                status = os.fstat(file.fileno())
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return tuple(found)


def _put_in_place(new: Path, place: Path) -> None:
    for suffix in (_LOG, "-shm", "-journal"):
        # What is left of them belongs to the recording of before, and would be taken for the new one's.
        with contextlib.suppress(FileNotFoundError):
            place.with_name(place.name + suffix).unlink()
    new.replace(place)
    descriptor = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_full_disk(error: StorageError | OSError) -> None:
    """Raise what tells that nothing can be written, which is no fault of one host's file."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    if (isinstance(cause, OSError) and cause.errno in _DISK) or getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SQLITE:
        raise error


def _remove_left_behind(folder: JobFolder) -> None:
    """Remove what merges that were killed left; ages are differences of the file server's own times."""
    with contextlib.suppress(OSError):
        now = folder.path.stat().st_mtime
        for each in folder.path.glob(f"{_STAGE}*"):
            with contextlib.suppress(OSError):
                if now - each.stat().st_mtime > _LEFT_BEHIND_S:
                    shutil.rmtree(each)
