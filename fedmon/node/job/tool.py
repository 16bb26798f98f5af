"""One run of `fedmon job` on one host: measures the machine and the job until something ends it, then writes it up."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError, StorageError
from fedmon.node.job.channel import Channel
from fedmon.node.job.ending import AlsoWhen, Endings
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.ipc import StopFile
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.log_file import LogFile
from fedmon.node.job.options import JobOptions

if TYPE_CHECKING:
    from fedmon.node.job.measured import MeasuredJob

logger = logging.getLogger(__name__)

_NEAR = "the time limit of the scheduler is near"


class JobRun:
    """Measures one job on this host; for the main thread of a process.

    ``channel`` leads to the process that runs the command; None where an existing job is measured. ``environ`` is that
    of the job. Raises StorageError from `begin` when the shared folder cannot be used.
    """

    def __init__(
        self,
        options: JobOptions,
        identity: JobIdentity,
        *,
        environ: Mapping[str, str],
        channel: Channel | None = None,
    ) -> None:
        self._options, self._identity, self._environ, self._channel = options, identity, environ, channel
        self._folder = JobFolder(options.save_dir, options.prefix, identity.key, job_id=identity.job_id)
        nodes = identity.step_nodes or identity.nodes
        self._expected = len(nodes) if nodes else None
        self._members = Membership(self._folder, host=identity.host, expected=self._expected)
        self._stop_file = StopFile(self._folder.ipc)
        self._log: LogFile | None = None
        self._stderr = -1

    def begin(self) -> None:
        """Take part under a name of its own, and log from now on. Raises StorageError and InvalidInputError."""
        self._members.begin({"pid": os.getpid(), "command": self._options.told_command, "step": self._identity.step})
        try:
            self._log = LogFile(self._folder.log(self._members.host), verbose=self._options.verbose)
        except StorageError:
            self._members.close()
            raise
        # What a library prints must not come between the lines of the job.
        self._stderr = os.dup(2)
        self._log.take_output()
        self._stop_file.begin(self._is_meant)
        logger.info(
            "job %s is measured on host %s as process %d", self._identity.job_id, self._members.host, os.getpid()
        )

    def run(self) -> int:
        """Measure to the end, then merge and write what was asked for where this host is the last one.

        Returns the exit code of a run without a command.
        """
        from fedmon.node.job.measured import MeasuredJob

        with Endings(channel=self._channel) as endings:
            measured = MeasuredJob(
                self._options, self._identity, members=self._members, environ=self._environ, channel=self._channel,
                stop=AlsoWhen(endings, self._stopped),
            )  # fmt: skip
            measured.start()
            self._configure(measured)
            early = None if self._channel is None and endings.is_set() else measured.early_end
            end = early or endings.wait_for_end(
                [measured.look_after, self._stopped, lambda: _NEAR if measured.limit.is_near() else None]
            )
            logger.info("the run ends: %s", end.reason)
            lost = measured.finish(end)
        if self._channel is not None:
            self._channel.tell(kind="sampled")
        if lost:
            self.complain(
                f"{lost} samples could not be written and are lost; see {self._folder.log(self._members.host)}"
            )
        if measured.problem is not None:
            self.complain(str(measured.problem))
        try:
            self._write_up(measured.last_document)
        except KeyboardInterrupt:
            logger.warning("given up; 'fedmon job merge %s' does the rest", self._folder.path)
        return 0 if measured.problem is None else measured.problem.exit_code

    def close(self) -> None:
        """Let go of the folder and the log."""
        self._members.close()
        if self._log is not None:
            self._log.close()

    def complain(self, text: str) -> None:
        """Say something that must not be missed where the job's own messages go, in one line."""
        from fedmon.common.log import escape_control

        logger.error("%s", text)
        try:
            os.write(self._stderr if self._stderr >= 0 else 2, f"fedmon: {escape_control(text)}\n".encode())
        except OSError:
            logger.debug("nobody reads the standard error any more")

    def _is_meant(self, changed: float) -> bool:
        """Tell whether a stop that lies there is for this run."""
        from fedmon.node.job.meant import asked_at, is_of_this_run

        # Who started the command meant this run with whatever was written since; this process was forked later.
        asked = asked_at(os.getpid() if self._channel is None else os.getppid())
        return changed >= asked - (self._members.clock_offset_s or 0.0) or is_of_this_run(
            changed, self._folder, self._identity, self._members.others(),
            expected=self._expected, environ=self._environ,
        )  # fmt: skip

    def _stopped(self) -> str | None:
        why = self._stop_file.says_stop()
        return None if why is None else f"{self._folder.ipc.name}: {why}"

    def _configure(self, measured: MeasuredJob) -> None:
        if not self._options.verbose:
            return
        from fedmon.node.job.run_config import run_config, write_run_config

        document = measured.describe()
        try:
            config = run_config(
                self._options, self._identity, self._folder, host=self._members.host, recording=self._members.recording,
                pids=measured.pids, gpus=len(document["hardware"].get("gpus") or ()), has_perf=measured.counts_events,
            )  # fmt: skip
            write_run_config(self._folder.run_config(self._members.host), config)
        except FedmonError as error:
            logger.warning("%s", error)

    def _write_up(self, document: Mapping[str, Any]) -> None:
        try:
            is_last = self._members.end({"ended": document["jobs"][self._identity.key]["ended"]})
            while is_last:
                _merged(
                    self._folder, self._options.export, report=self._options.gen_report,
                    # Who waits for a command waits no longer than it takes; 'fedmon job merge' does the rest.
                    json=not self._options.command,
                )  # fmt: skip
                is_last = self._members.done()
        except FedmonError as error:
            self.complain(f"{error} ('fedmon job merge {self._folder.path}' tries again)")


def measure(
    options: JobOptions, identity: JobIdentity, *, environ: Mapping[str, str], channel: Channel | None = None
) -> int:
    """Run the tool once and return its exit code. Raises FedmonError when it could not begin."""
    try:
        run = JobRun(options, identity, environ=environ, channel=channel)
        run.begin()
    except FedmonError as error:
        if channel is None:
            raise
        channel.tell(kind="refused", text=str(error))
        return error.exit_code
    if channel is not None:
        channel.tell(kind="ready")
    try:
        return run.run()
    except FedmonError as error:
        run.complain(str(error))
        return error.exit_code
    except Exception as error:
        logger.exception("the measuring failed")
        run.complain(f"the measuring failed: {type(error).__name__}: {error}")
        return 1
    finally:
        run.close()


def merge_again(path: Path, *, exports: Sequence[str], report: bool) -> list[Path]:
    """Merge every job of a folder, and write what is asked for; returns the merged recordings. Raises FedmonError."""
    return [_merged(folder, exports, report=report, json=True) for folder in JobFolder.found(path)]


def _merged(folder: JobFolder, exports: Sequence[str], *, report: bool, json: bool) -> Path:
    from fedmon.node.job.merge import merge

    merged = merge(folder)
    if exports or report or json:
        from fedmon.node.job.postprocess import postprocess

        postprocess(folder, exports=exports, report=report, log=logger)
    return merged
