"""What follows a merge: perfmon's JSON files, and tables, plots and report as far as they were asked for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmon.common.errors import FedmonError
from fedmon.node.job.layout import FILE_MODE, JobFolder
from fedmon.report.extra import MissingExtraError, report_extra

if TYPE_CHECKING:
    from fedmon.report.source import Source
    from fedmon.report.table import Table

ALL_METRICS = "all_metrics"


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
        self._is_shared = _is_shared(folder)

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
        with self.guarded(what):
            found = list(step())
            for path in found:
                path.chmod(FILE_MODE)
            self.written += found
            self._log.info("%s: %s", what, ", ".join(path.name for path in found) or "nothing to write")

    def json_files(self, source: Source) -> Iterable[Path]:
        """Write perfmon's JSON files."""
        with report_extra("a file of metrics"):
            from fedmon.report.views.perfmon import write_json

        self._folder.make_folder(self._folder.metrics)
        return write_json(source, self._folder.metrics, self._job(source), name_job=self._is_shared)

    def export(self, source: Source, name: str) -> Iterator[Path]:
        """Write perfmon's groups and all metrics in one format, as far as anything was measured."""
        with report_extra("an export"):
            from fedmon.report import export

        for table in self._tables(source):
            chosen = export.FORMATS[name]
            # Only files that hold one table each would be replaced by those of another job.
            stem = table.name if chosen.is_appended or not self._is_shared else f"{table.name}_{self._folder.key}"
            path = self._folder.path / f"{stem}{chosen.suffix}"
            yield export.write(table, path, format=name, key=self._folder.key, replace=True)

    def plots(self, source: Source) -> Iterable[Path]:
        """Draw everything that was measured."""
        with report_extra("a plot"):
            from fedmon.report import plots

        self._folder.make_folder(self._folder.plots)
        place = self._folder.plots / self._folder.key if self._is_shared else self._folder.plots
        self._folder.make_folder(place)
        return plots.write(source, place, job=self._job(source))

    def report(self, source: Source) -> Iterable[Path]:
        """Write the report, as a page and as a PDF."""
        with report_extra("a report"):
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


def _is_shared(folder: JobFolder) -> bool:
    """Tell whether other jobs use the same folder."""
    try:
        return [job.key for job in JobFolder.found(folder.path)] not in ([], [folder.key])
    except FedmonError:
        return False
