"""`fedmon job`: measure a batch job, or a command, from inside; one run on one host."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError, NotFoundError, SettingsError, StorageError
from fedmon.common.files import write_whole
from fedmon.common.log import OUR_LOGGER, escape_control
from fedmon.node.job.end import End, RunEnd, StopFile, run_start
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity, identify
from fedmon.node.job.layout import FILE_MODE, FOLDER_MODE, JobFolder
from fedmon.node.job.options import LABELS, JobOptions, absolute, check_formats, parsers, read
from fedmon.node.job.wrapper import Channel, supervise

if TYPE_CHECKING:
    from fedmon.node.job.monitor import JobMonitor

_SHOWN_COMMAND = 60
_USAGE_ERROR = 2

logger = logging.getLogger(__name__)


def run_words(words: Sequence[str]) -> int:
    """Run the verb and return its exit code. Raises FedmonError."""
    if words[:1] == ["merge"]:
        return _merge_verb(words[1:])
    options = read(words, os.environ)
    if not words and sys.stdout.isatty() and _has_no_job(options):
        sys.stdout.write(parsers()["job"].format_help())
        return _USAGE_ERROR
    return _run(options)


def _has_no_job(options: JobOptions) -> bool:
    identity = identify(os.environ, hostname=os.uname().nodename, pid=os.getpid())
    named = options.command or options.pids or os.environ.get("FEDMON_JOB_ID")
    return identity.scheduler == "none" and not named


def _run(options: JobOptions) -> int:
    """Run the tool once. Raises FedmonError if it could not begin, or if there is no job."""
    _keep_places()
    environ = dict(os.environ)
    identity = identify(environ, hostname=os.uname().nodename, pid=os.getpid())
    if _has_no_job(options):
        raise NotFoundError(
            "there is no job here: no variable of SLURM, PBS or OAR is set. Measure a command with 'fedmon job --"
            " COMMAND', processes with --pid, or set FEDMON_JOB_ID for all processes of a job"
        )

    def monitor(channel: Channel | None) -> int:
        return measure(options, identity, environ=environ, channel=channel)

    try:
        if not options.command:
            return monitor(None)
        return supervise(options.command, key=identity.key, monitor=monitor)
    except FedmonError as error:
        if error.exit_code == 1:  # it could not begin, which must not look like an end of the job
            raise SettingsError(str(error)) from None
        raise


def _merge_verb(words: Sequence[str]) -> int:
    given = parsers()["job merge"].parse_args(words)
    exports = tuple(dict.fromkeys(given.export))
    check_formats(exports)
    paths = [str(path) for path in merge_again(absolute(given.folder), exports=exports, report=given.gen_report)]
    sys.stdout.write(f"{json.dumps({'merged': paths})}\n" if given.json else "".join(f"{path}\n" for path in paths))
    return 0


def _keep_places() -> None:
    """Open those standard streams that are closed, so that no file of ours gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


class ToolRun:
    """One run on this host; for the main thread of a process.

    ``channel`` leads to the process that runs the command; None when an existing job is measured. ``environ`` is that
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
        self._members = Membership(self._folder, host=identity.host, expected=len(nodes) if nodes else None)
        self._stop_file = StopFile(self._folder.ipc)
        self._log: LogFile | None = None
        self._outputs = (-1, -1)

    def begin(self) -> None:
        """Take part under a free name, and log from now on. Raises StorageError and InvalidInputError."""
        self._members.begin(self._identity.step)
        try:
            self._log = LogFile(self._folder.log(self._members.host), verbose=self._options.verbose)
        except StorageError:
            self._members.close()
            raise
        # A library's prints must not come between the lines of the job.
        self._outputs = (os.dup(1), os.dup(2))
        self._log.take_output()
        # The command's caller meant this run with a stop since then; this process was forked later.
        pid = os.getpid() if self._channel is None else os.getppid()
        self._stop_file.begin(lambda: run_start(pid, self._folder, self._identity, self._members, self._environ))
        logger.info(
            "job %s is measured on host %s as process %d", self._identity.job_id, self._members.host, os.getpid()
        )
        command = shlex.join(self._options.told_command)
        shown = f"{command[:_SHOWN_COMMAND]}..." if len(command) > _SHOWN_COMMAND else command
        self._announce(
            f"measuring {f'`{shown}`' if command else f'job {self._identity.job_id}'} on {self._members.host} every"
            f" {self._options.interval:g} s into {self._folder.path}"
        )

    def run(self) -> int:
        """Measure to the end, then merge and write results if this host is the last one.

        Returns the exit code of a run without a command.
        """
        from fedmon.node.job.monitor import JobMonitor

        with RunEnd(channel=self._channel, check=self._stop_file.check) as ending:
            monitor = JobMonitor(
                self._options, self._identity, members=self._members, environ=self._environ, channel=self._channel,
                stop=ending.wait,
            )  # fmt: skip
            monitor.start()
            self._configure(monitor)
            early = None if self._channel is None and ending.wait(0.0) else monitor.early_end
            end = early or ending.wait_for_end([monitor.look_after, monitor.limit.check])
            logger.info("the run ends: %s", end.reason)
            lost = monitor.finish(end)
        if self._channel is not None:
            self._channel.tell(kind="sampled")
        if lost:
            log = self._folder.log(self._members.host)
            self.complain(f"{lost} samples could not be written and are lost; see {log}")
        if monitor.problem is not None:
            self.complain(str(monitor.problem))
        is_merged = False
        try:
            is_merged = self._write_up()
        except KeyboardInterrupt:
            logger.warning("given up; 'fedmon job merge %s' does the rest", self._folder.path)
        self._announce_end(end, is_merged=is_merged)
        return 0 if monitor.problem is None else monitor.problem.exit_code

    def close(self) -> None:
        """Free the name in the folder, and close the log."""
        self._members.close()
        if self._log is not None:
            self._log.close()

    def complain(self, text: str) -> None:
        """Print an error as one line on stderr, and log it."""
        logger.error("%s", text)
        self._print(f"fedmon: {escape_control(text)}\n")

    def _announce(self, text: str) -> None:
        if not (self._options.quiet or self._options.json):
            self._print(f"fedmon: {escape_control(text)}\n")

    def _announce_end(self, end: End, *, is_merged: bool) -> None:
        if not self._options.json:
            path = self._folder.path
            self._announce(f"results in {path}" if is_merged else f"recorded in {path}; the last host to end merges")
            return
        document = {
            "job_id": self._identity.job_id,
            "host": self._members.host,
            "folder": str(self._folder.path),
            "recording": str(self._members.recording),
            "merged": str(self._folder.merged) if is_merged else None,
            "reason": end.reason,
            "exit_code": end.exit_code,
        }
        # The command's own output stays as it is.
        self._print(f"{json.dumps(document)}\n", to=0 if self._channel is None else 1)

    def _print(self, text: str, *, to: int = 1) -> None:
        descriptor = self._outputs[to] if self._outputs[to] >= 0 else to + 1
        try:
            os.write(descriptor, text.encode(errors="backslashreplace"))
        except OSError:
            logger.debug("nothing reads the output any more")

    def _configure(self, monitor: JobMonitor) -> None:
        if not self._options.verbose:
            return
        document = monitor.describe()
        config = run_config(
            self._options, self._identity, self._folder, host=self._members.host, pids=monitor.pids,
            gpus=len(document["hardware"].get("gpus") or ()), has_perf=monitor.counts_events,
        )  # fmt: skip
        try:
            import yaml

            text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            path = self._folder.run_config(self._members.host)
            write_whole(path, text.encode(), mode=FILE_MODE, folder_mode=FOLDER_MODE)
        except FedmonError as error:
            logger.warning("%s", error)

    def _write_up(self) -> bool:
        """Merge if this host is the last one, and tell whether it did."""
        is_merged = False
        try:
            while self._members.end() if not is_merged else self._members.done():
                # A command's caller waits no longer than needed; 'fedmon job merge' writes the JSON files later.
                _merge(
                    self._folder,
                    self._options.export,
                    report=self._options.gen_report,
                    with_json=not self._options.command,
                )
                is_merged = True
            if is_merged and self._members.is_over():
                self._stop_file.remove()
        except FedmonError as error:
            self.complain(f"{error} ('fedmon job merge {self._folder.path}' tries again)")
        return is_merged


def measure(
    options: JobOptions, identity: JobIdentity, *, environ: Mapping[str, str], channel: Channel | None = None
) -> int:
    """Run the tool once and return its exit code. Raises FedmonError when it could not begin."""
    try:
        run = ToolRun(options, identity, environ=environ, channel=channel)
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
    """Merge every job of a folder, and write results; returns the merged recordings. Raises FedmonError."""
    return [_merge(folder, exports, report=report, with_json=True) for folder in JobFolder.found(path)]


def _merge(folder: JobFolder, exports: Sequence[str], *, report: bool, with_json: bool) -> Path:
    from fedmon.node.job.merge import merge, postprocess

    merged = merge(folder).path
    if exports or report or with_json:
        postprocess(folder, exports=exports, report=report, log=logger)
    return merged


class LogFile(logging.Handler):
    """Writes fedmon's log into a file, and nowhere else, until it is closed.

    A record that cannot be written, as on a full disk, is dropped. Raises StorageError when the file cannot be opened.
    """

    def __init__(self, path: Path, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.INFO)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(path, flags, FILE_MODE)
        except OSError as error:
            raise StorageError(f"cannot write the log {path}: {error.strerror}") from error
        ours = logging.getLogger(OUR_LOGGER)
        for handler in list(ours.handlers):  # the terminal's would write between the lines of the job
            ours.removeHandler(handler)
        ours.addHandler(self)
        ours.setLevel(self.level)
        ours.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as one line, at once."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        with contextlib.suppress(OSError):
            line = f"{moment.replace('+00:00', 'Z')} {record.levelname} {record.name}: {self.format(record)}"
            os.write(self._descriptor, f"{escape_control(line)}\n".encode(errors="replace"))

    def take_output(self) -> None:
        """Have all prints of this process go into the log from now on."""
        os.dup2(self._descriptor, 1)
        os.dup2(self._descriptor, 2)

    def close(self) -> None:
        """Stop logging; safe to call twice."""
        logging.getLogger(OUR_LOGGER).removeHandler(self)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
        super().close()


def run_config(
    options: JobOptions,
    identity: JobIdentity,
    folder: JobFolder,
    *,
    host: str,
    pids: Sequence[int],
    gpus: int,
    has_perf: bool,
) -> dict[str, Any]:
    """Return a run's configuration; keys and their order are perfmon's, and fedmon's own come last."""
    told, nodes = options.told(), identity.nodes or (identity.host,)
    first = ("prefix", "launcher", "sampling_freq", "check_point", "gen_report", "export", *LABELS, "verbose")
    metrics = ["meta_data", "cpu_metrics", *(["perf_metrics"] * has_perf), *(["nv_gpu_metrics"] * bool(gpus))]
    return {
        "save_dir": str(folder.path),
        **{name: told[name] for name in first},
        "host_name": identity.host,
        "node_name": host,
        "master_node": nodes[0],
        "num_nodes": len(nodes),
        "user": identity.user,
        "scheduler": identity.scheduler,
        "job_id": identity.job_id,
        "script_name": "fedmon job",
        "metrics": metrics,
        "num_nvidia_gpus": gpus,
        "pid": list(pids),
        "ipc_file": str(folder.ipc),
        "data_dir": str(folder.metrics),
        "plot_dir": str(folder.plots),
        "report_path": str(folder.report_pdf),
        "temp_path": str(folder.recording(host)),
        "perf_event_file": None,
        "db_lock_file": None,
        "command": told["command"],
        "broker": told["broker"],
    }
