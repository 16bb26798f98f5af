"""The merge of all hosts' recordings of one job, and the files made of it; after a crash the previous ones stay."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.files import storage_errors, sync
from fedmon.common.store.damage import is_damaged
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_compaction import RecordingJoin
from fedmon.common.store.recording_file import RecordingFile, salvage
from fedmon.node.job.layout import FILE_MODE, FOLDER_MODE, RECORDING_SUFFIX, JobFolder
from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from fedmon.report.source import Source

logger = logging.getLogger(__name__)

_STAGE = ".merge-"
_LEFT_BEHIND_S = 3600.0
"""A merge that has not changed its folder for so long was killed."""
_LOG = "-wal"
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_SQLITE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY})


def merge(folder: JobFolder) -> Mapping[Path, str]:
    """Make the recording of all hosts so far, and return the problems of hosts' recordings.

    That of a job's only host, once it has ended, gets a second name, where the file system has links, and no copy. It
    can be repeated, also by several hosts at once: the result is the same, and the hosts' files stay as they are. A
    damaged file is logged, and its readable part is taken. Raises StorageError if the merged recording cannot be
    written; the previous one stays then.
    """
    stage = folder.path / f"{_STAGE}{os.urandom(8).hex()}"
    staged = stage / folder.merged.name
    try:
        with storage_errors(folder.merged, "merge into"):
            stage.mkdir(mode=FOLDER_MODE)
            _remove_left_behind(folder)
            only = _only_recording(folder)
            problems: Mapping[Path, str] = {}
            if only is None or not _is_linked(staged, only.relative_to(folder.path)):
                problems = _joined(folder, staged)
            for suffix in (_LOG, "-shm", "-journal"):  # of the previous recording, and would be taken for the new one's
                folder.merged.with_name(folder.merged.name + suffix).unlink(missing_ok=True)
            staged.replace(folder.merged)
            sync(folder.path)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    for path, problem in problems.items():
        logger.warning("%s: %s", path, problem)
    logger.info("merged into %s", folder.merged)
    return problems


def host_recordings(folder: JobFolder) -> list[Path]:
    """Return the recordings of a job's hosts, by name."""
    return sorted(folder.recordings.glob(f"*{RECORDING_SUFFIX}"))


def _previous(folder: JobFolder) -> list[Path]:
    """Return the merged recording, unless it is another name of a host's."""
    return [folder.merged] if folder.merged.exists() and not folder.merged.is_symlink() else []


def _only_recording(folder: JobFolder) -> Path | None:
    """Return the recording of a job's only host if it is sound and complete; None if there is anything to join."""
    recordings = host_recordings(folder)
    begun, ended = ({each.stem for each in folder.hosts.glob(f"*.{kind}")} for kind in ("begin", "end"))
    if len(recordings) != 1 or _previous(folder) or not begun or begun - ended:
        return None
    try:
        with Recording(recordings[0], read_only=True) as recording:
            recording.extents()
    except StorageError:
        return None
    # A reader kept the log of its end: a copy of the link alone would lack the last samples.
    return None if recordings[0].with_name(recordings[0].name + _LOG).exists() else recordings[0]


def _is_linked(name: Path, target: Path) -> bool:
    """Give a file a second name; False if a file system has no symbolic links, as CIFS and exFAT."""
    try:
        name.symlink_to(target)
    except OSError:
        return False
    return True


def _joined(folder: JobFolder, target: Path) -> Mapping[Path, str]:
    problems: dict[Path, str] = {}
    with RecordingJoin(target) as join:
        # The samples of the previous merge come last: those of hosts' files that were removed since.
        for path in (*host_recordings(folder), *_previous(folder)):
            try:
                problem = _add(join, path, target.parent)
            except (StorageError, OSError) as error:
                _raise_if_full(error)
                problem = f"cannot be merged: {error}"
            if problem:
                problems[path] = problem
        join.finish()
    return problems


def _add(join: RecordingJoin, path: Path, stage: Path) -> str:
    """Add one recording, and return its problem, empty if there is none."""
    with tempfile.TemporaryDirectory(dir=stage) as folder:
        copy = sound = Path(folder, "copy")
        is_whole = _copied(path, copy)
        if has_damage := is_damaged(copy):
            sound = Path(folder, "sound")
        with contextlib.closing(RecordingFile(sound, read_only=False)) as opened:  # makes the tables of an empty one
            if has_damage:
                salvage(copy, into=opened)
        samples = join.add(sound, check=has_damage)
    if not is_whole:
        return "it was being written: merge again for more"
    return f"damaged: {samples} samples could be read" if has_damage else ""


def _copied(path: Path, copy: Path) -> bool:
    """Copy a recording with its log; False if it changed meanwhile, so that the copy may be of two moments.

    A recording is never opened while another host may write it: SQLite shares memory between the processes of one
    machine only.
    """
    before = _stamp(path)
    shutil.copyfile(path, copy)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(path.with_name(path.name + _LOG), copy.with_name(copy.name + _LOG))
    return _stamp(path) == before


def _stamp(path: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Return inode, size and time of a recording and its log, each opened again to ask the file server."""
    found: list[tuple[int, int, int] | None] = []
    for each in (path, path.with_name(path.name + _LOG)):
        try:
            with each.open("rb") as file:
                status = os.fstat(file.fileno())
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return tuple(found)


def _raise_if_full(error: StorageError | OSError) -> None:
    """Raise an error that says that nothing can be written, which is no fault of one host's file."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    if (isinstance(cause, OSError) and cause.errno in _DISK) or getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SQLITE:
        raise error


def _remove_left_behind(folder: JobFolder) -> None:
    """Remove the folders of killed merges; ages are differences of the file server's own times."""
    with contextlib.suppress(OSError):
        now = folder.path.stat().st_mtime
        for each in folder.path.glob(f"{_STAGE}*"):
            with contextlib.suppress(OSError):
                if now - each.stat().st_mtime > _LEFT_BEHIND_S:
                    shutil.rmtree(each)


def postprocess(folder: JobFolder, *, exports: Sequence[str], report: bool) -> tuple[list[Path], bool]:
    """Write the files that are made of a merged recording; return them, and whether no step failed.

    JSON files come in any case, ``exports`` are names of formats, ``report`` is for plots and the page. A step that
    fails is logged and stops no other; the recording stays as it is, and all of this can be repeated. In a folder that
    several jobs share, files have the job's key in their names.
    """
    steps = _Steps(folder)
    with steps.guarded(f"the recording {folder.merged}"), report_extra("processing a merged recording"):
        from fedmon.report.source import Source

        with Source([folder.merged]) as source:
            steps.run("JSON files", lambda: steps.json_files(source))
            for name in dict.fromkeys(exports):
                steps.run(f"the export to {name}", functools.partial(steps.export, source, name))
            if report:
                steps.run("plots", lambda: steps.plots(source))
                steps.run("the report", lambda: steps.report(source))
    return steps.written, not steps.failed


class _Steps:
    """The files of one job; failures are logged, and noted in ``failed``."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self.written: list[Path] = []
        self.failed: set[str] = set()
        self._is_shared = [job.key for job in JobFolder.found(folder.path)] != [folder.key]

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Log the failure of one step, so that the others continue."""
        try:
            yield
        except (FedmonError, OSError) as error:
            self.failed.add(what)
            logger.error("%s: %s", what, error)  # noqa: TRY400
        except Exception:
            # A mistake in one drawing must not cost a user the tables of a run that cannot be repeated.
            self.failed.add(what)
            logger.exception("%s failed", what)

    def run(self, what: str, step: Callable[[], Iterable[Path]]) -> None:
        """Take one step, and log its files."""
        with self.guarded(what), report_extra(what):
            found = list(step())
            for path in found:
                path.chmod(FILE_MODE)
            self.written += found
            logger.info("%s: %s", what, ", ".join(path.name for path in found) or "nothing to write")

    def json_files(self, source: Source) -> Iterable[Path]:
        """Write perfmon's JSON files."""
        from fedmon.report.views.perfmon import write_json

        self._folder.make_folder(self._folder.metrics)
        return write_json(source, self._folder.metrics, self._job(source), name_job=self._is_shared)

    def export(self, source: Source, name: str) -> Iterator[Path]:
        """Write perfmon's groups, all metrics and those of the tool in one format; empty ones are skipped."""
        from fedmon.report import export
        from fedmon.report.frames import job_tables
        from fedmon.report.views import perfmon

        for table in (*perfmon.tables(source, self._job(source)), *job_tables(source)):
            chosen = export.FORMATS[name]
            # Only files that hold one table each would be replaced by those of another job.
            stem = table.name if chosen.is_appended or not self._is_shared else f"{table.name}_{self._folder.key}"
            path = self._folder.path / f"{stem}{chosen.suffixes[0]}"
            export.write(table, path, format=name, key=self._folder.key, replace=True)
            yield path

    def plots(self, source: Source) -> Iterable[Path]:
        """Draw the main charts."""
        from fedmon.report.charts import charts_of, read_bins, write_charts
        from fedmon.report.subject import choose

        place = self._folder.plots / self._folder.key if self._is_shared else self._folder.plots
        for each in (self._folder.plots, place):
            self._folder.make_folder(each)
        subject = choose(source, job=self._job(source))
        found = charts_of(read_bins(subject), subject)
        return write_charts(found, found.first, place)

    def report(self, source: Source) -> Iterable[Path]:
        """Write the report as a page."""
        from fedmon.report.document.report import write

        return write(source, html=self._folder.report_html, job=self._job(source))

    def _job(self, source: Source) -> str | None:
        """Return the job's key if there is anything of it; a run that found no job measured the host alone."""
        return self._folder.key if self._folder.key in source.job_ids else None
