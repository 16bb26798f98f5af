"""The merge of all hosts' recordings of one job, and the files made of it; a crash leaves the previous ones."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.files import sync
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_join import Joined, RecordingJoin
from fedmon.node.job.layout import FILE_MODE, FOLDER_MODE, RECORDING_SUFFIX, JobFolder
from fedmon.report.extra import MissingExtraError, report_extra

if TYPE_CHECKING:
    from fedmon.report.source import Source
    from fedmon.report.table import Table

ALL_METRICS = "all_metrics"

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
    """One host's recording in a merge; ``problem`` says why some or all of it is missing."""

    path: Path
    samples: int = 0
    problem: str = ""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A merged recording and its sources; ``kept`` samples were in the previous one, and in no host's file."""

    path: Path
    files: tuple[MergedFile, ...]
    samples: int
    kept: int = 0


def merge(folder: JobFolder) -> Merged:
    """Merge the recordings of all hosts into one; of hosts that still write, their samples up to now.

    It can be done again, and by several hosts at once: the same comes out, and the hosts' files stay as they are. A
    damaged file is logged, and its readable part is taken. Raises StorageError when the merged recording cannot be
    written; the previous one is still there then.
    """
    stage = folder.path / f"{_STAGE}{os.urandom(8).hex()}"
    try:
        stage.mkdir(mode=FOLDER_MODE)
        _remove_left_behind(folder)
        files, kept = _join(folder, stage)
        for suffix in (_LOG, "-shm", "-journal"):  # of the previous recording, and would be taken for the new one's
            folder.merged.with_name(folder.merged.name + suffix).unlink(missing_ok=True)
        (stage / folder.merged.name).replace(folder.merged)
        sync(folder.path)
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


def postprocess(folder: JobFolder, *, exports: Sequence[str], report: bool, log: logging.Logger) -> list[Path]:
    """Write what is to be had of a merged recording; returns the files.

    JSON files come in any case, ``exports`` are names of formats, ``report`` is for plots, page and PDF. What fails is
    told in the log and stops nothing else; the recording stays as it is, and all of this can be done again. Where the
    folder is shared by several jobs, files have the job's key in their names.
    """
    steps = _Steps(folder, log)
    with steps.guarded(f"the recording {folder.merged}"), report_extra("what follows a merge"):
        from fedmon.report.source import Source

        with Source([folder.merged]) as source:
            steps.run("JSON files", lambda: steps.json_files(source))
            for name in dict.fromkeys(exports):
                steps.run(f"the export to {name}", lambda name=name: steps.export(source, name))  # type: ignore[misc]
            if report:
                from fedmon.report.plots.library import own_process

                with own_process(folder.path):
                    steps.run("plots", lambda: steps.plots(source))
                    steps.run("the report", lambda: steps.report(source))
    return steps.written


class _Steps:
    """The files of one job; what fails is logged."""

    def __init__(self, folder: JobFolder, log: logging.Logger) -> None:
        self._folder, self._log = folder, log
        self.written: list[Path] = []
        self._missing: set[str] = set()
        self._is_shared = [job.key for job in JobFolder.found(folder.path)] != [folder.key]

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Log what goes wrong with one part, so that the others come all the same."""
        try:
            yield
        except MissingExtraError as error:
            if str(error) not in self._missing:
                self._log.error("%s; the recording stays: %s", error, self._folder.merged)
            self._missing.add(str(error))
        except (FedmonError, OSError) as error:
            self._log.error("%s: %s", what, error)
        except Exception:  # noqa: BLE001 - see below
            # A mistake in one drawing must not cost a user the tables of a run that cannot be repeated.
            self._log.exception("%s failed", what)

    def run(self, what: str, step: Callable[[], Iterable[Path]]) -> None:
        """Take one step, and log what came of it."""
        with self.guarded(what), report_extra(what):
            found = list(step())
            for path in found:
                path.chmod(FILE_MODE)
            self.written += found
            self._log.info("%s: %s", what, ", ".join(path.name for path in found) or "nothing to write")

    def json_files(self, source: Source) -> Iterable[Path]:
        """Write perfmon's JSON files."""
        from fedmon.report.views.perfmon import write_json

        self._folder.make_folder(self._folder.metrics)
        return write_json(source, self._folder.metrics, self._job(source), name_job=self._is_shared)

    def export(self, source: Source, name: str) -> Iterator[Path]:
        """Write perfmon's groups and all metrics in one format, as far as anything was measured."""
        from fedmon.report import export

        for table in self._tables(source):
            chosen = export.FORMATS[name]
            # Only files that hold one table each would be replaced by those of another job.
            stem = table.name if chosen.is_appended or not self._is_shared else f"{table.name}_{self._folder.key}"
            path = self._folder.path / f"{stem}{chosen.suffix}"
            yield export.write(table, path, format=name, key=self._folder.key, replace=True)

    def plots(self, source: Source) -> Iterable[Path]:
        """Draw everything that was measured."""
        from fedmon.report import plots

        self._folder.make_folder(self._folder.plots)
        place = self._folder.plots / self._folder.key if self._is_shared else self._folder.plots
        self._folder.make_folder(place)
        return plots.write(source, place, job=self._job(source))

    def report(self, source: Source) -> Iterable[Path]:
        """Write the report, as a page and as a PDF."""
        from fedmon.report.document import write

        return write(source, html=self._folder.report_html, pdf=self._folder.report_pdf, job=self._job(source))

    def _tables(self, source: Source) -> Iterator[Table]:
        from fedmon.report.frames import WideTable
        from fedmon.report.views import perfmon

        yield from perfmon.tables(source, self._job(source))
        wide = WideTable(source)
        wide.name = ALL_METRICS
        yield wide

    def _job(self, source: Source) -> str | None:
        """Return the job's key where there is something of it; a run that found no job measured the host alone."""
        return self._folder.key if self._folder.key in source.job_ids else None
