"""`fedmon job`: measure a batch job, or a command, from inside; one run on one host."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fedmon.common.errors import FedmonError, NotFoundError, SettingsError, StorageError
from fedmon.common.files import storage_errors, write_whole
from fedmon.common.log import OUR_LOGGER, OneLine, escape_control
from fedmon.node.job.end import RunEnd, StopFile, catch_signals, ignore_signals, run_start
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity, identify
from fedmon.node.job.layout import FILE_MODE, FOLDER_MODE, JobFolder
from fedmon.node.job.options import JobOptions, absolute, check_formats, parsers, read
from fedmon.node.job.wrapper import Channel, Supervisor

if TYPE_CHECKING:
    from fedmon.node.job.monitor import JobMonitor

_SHOWN_COMMAND = 60
_USAGE_ERROR = 2

logger = logging.getLogger(__name__)


def run_words(words: Sequence[str]) -> int:
    """Run the verb and return its exit code. Raises FedmonError if it could not begin, or if there is no job."""
    if words[:1] == ["merge"]:
        return _merge_verb(words[1:])
    options, environ = read(words, os.environ), dict(os.environ)
    identity = identify(environ, hostname=os.uname().nodename, pid=os.getpid())
    if identity.scheduler == "none" and not (options.command or options.pids or environ.get("FEDMON_JOB_ID")):
        if not words and sys.stdout.isatty():
            sys.stdout.write(parsers()["job"].format_help())
            return _USAGE_ERROR
        raise NotFoundError(
            "no job found: no variable of SLURM, PBS or OAR is set. Measure a command with 'fedmon job -- COMMAND',"
            " processes with --pid, or set FEDMON_JOB_ID for all processes of a job"
        )
    _open_closed_streams()

    try:
        run = ToolRun(options, identity, environ)
        if options.command:
            return Supervisor(options.command, identity.key).run(run.measure)
        return run.measure(catch_signals())
    except StorageError as error:  # it could not begin, which must not look like an end of the job
        raise SettingsError(str(error)) from None


def _merge_verb(words: Sequence[str]) -> int:
    parser = parsers()["job merge"]
    given = parser.parse_args(words)
    *exports, folder_name = [*given.export, *given.folder] or parser.error("FOLDER is missing")
    check_formats(exports)
    done: dict[str, bool] = {}
    failed: FedmonError | None = None
    for folder in JobFolder.found(absolute(Path(folder_name))):
        try:
            done[str(folder.merged)] = _merge(folder, exports, report=given.gen_report, with_json=True)
        except FedmonError as error:
            if failed is not None:
                sys.stderr.write(f"fedmon: {escape_control(str(error))}\n")
            failed = failed or error
    if not given.json:
        sys.stdout.write("".join(f"{path}\n" for path in done))
    if failed is not None:
        raise failed
    if given.json:
        sys.stdout.write(f"{json.dumps({'merged': list(done)})}\n")
    return 0 if all(done.values()) else 1


def _merge(folder: JobFolder, exports: Sequence[str], *, report: bool, with_json: bool) -> bool:
    """Merge, and return whether all exports and the report that were asked for could be written."""
    from fedmon.node.job.merge import merge, postprocess

    merge(folder)
    is_whole = not (exports or report or with_json) or postprocess(folder, exports=exports, report=report)[1]
    return is_whole or not (exports or report)


def _open_closed_streams() -> None:
    """Open those standard streams that are closed, so that no file of ours gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


class ToolRun:
    """One run on this host, in the environment of a job; for the main thread of a process."""

    def __init__(self, options: JobOptions, identity: JobIdentity, environ: Mapping[str, str]) -> None:
        """Raise InvalidInputError for an unusable prefix."""
        self._options, self._identity, self._environ = options, identity, environ
        self._folder = JobFolder(options.save_dir, options.prefix, identity.key, job_id=identity.job_id)
        nodes = identity.step_nodes or identity.nodes
        self._members = Membership(self._folder, host=identity.host, expected=len(nodes) if nodes else None)
        self._stop_file = StopFile(self._folder.ipc)
        self._outputs = (1, 2)

    def measure(self, channel: Channel) -> int:
        """Measure to the end, and return the exit code of a run without a command.

        ``channel`` is that of the process that runs the command, or of this process's signals. Raises FedmonError if it
        could not begin.
        """
        try:
            self._begin()
            if self._options.command:
                channel.tell(kind="ready")
            try:
                return self._run(channel)
            except Exception as error:
                logger.exception("measuring failed")
                self._complain(f"measuring failed: {type(error).__name__}: {error}")
                return 1
        finally:
            self._members.close()

    def _begin(self) -> None:
        """Take part under a free name, and log from now on. Raises FedmonError."""
        options, members = self._options, self._members
        members.begin()
        log = log_into(self._folder.log(members.host), verbose=options.verbose)
        # The command's caller meant this run with a stop since then; this process was forked later.
        pid = os.getppid() if options.command else os.getpid()
        self._stop_file.begin(lambda: run_start(pid, self._folder, self._identity, members, self._environ))
        # A library's prints must not come between the lines of the job.
        self._outputs = (os.dup(1), os.dup(2))
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        logger.info("job %s is measured on host %s by process %d", self._identity.job_id, members.host, os.getpid())
        command = shlex.join(options.printable_command)
        shown = f"{command[:_SHOWN_COMMAND]}..." if len(command) > _SHOWN_COMMAND else command
        self._announce(
            f"measuring {f'`{shown}`' if command else f'job {self._identity.job_id}'} on {members.host} every"
            f" {options.interval:g} s into {self._folder.path}"
        )

    def _run(self, channel: Channel) -> int:
        from fedmon.node.job.monitor import JobMonitor

        has_command = bool(self._options.command)
        monitor = JobMonitor(
            self._options, self._identity, members=self._members, environ=self._environ, channel=channel
        )
        monitor.start()
        if self._options.verbose:
            self._configure(monitor)
        ending = RunEnd(channel, has_command=has_command, check=self._stop_file.check)
        end = ending.wait_for_end(monitor.look_after)
        logger.info("the run ends: %s", end.reason)
        lost = monitor.finish(end)
        ignore_signals(of_command=has_command)
        if has_command:
            channel.tell(kind="sampled")
        if lost:
            log = self._folder.log(self._members.host)
            self._complain(f"{lost} samples could not be written and are lost; see {log}")
        if monitor.problem is not None:
            self._complain(str(monitor.problem))
        path = self._folder.path
        is_merged, told = False, f"recorded in {path}; 'fedmon job merge {path}' does the rest"
        try:
            is_merged, told = self._write_up()
        except FedmonError as error:
            self._complain(f"{error} ('fedmon job merge {path}' tries again)")
        except KeyboardInterrupt:
            logger.warning("interrupted while results were written")
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                monitor.close()
        if self._options.json:
            self._print_json(end.reason, end.exit_code, is_merged=is_merged)
        if end is not monitor.early_end:
            self._announce(told)
        return 0 if monitor.problem is None else monitor.problem.exit_code

    def _write_up(self) -> tuple[bool, str]:
        """Merge if this host is the last one; tell whether it did, and where the results are. Raises StorageError."""
        folder, options, members = self._folder, self._options, self._members
        is_ours = members.end()
        if not is_ours:
            return False, f"recorded in {folder.path}; the last host to end merges"
        while is_ours:
            # A command's caller waits no longer than needed; 'fedmon job merge' writes the JSON files later.
            is_whole = _merge(folder, options.export, report=options.gen_report, with_json=not options.command)
            is_ours = members.done()
        if members.is_over():
            self._stop_file.remove()
        if not is_whole:
            self._complain(f"files that were asked for could not be written; see {folder.log(members.host)}")
        return True, f"results in {folder.path}"

    def _configure(self, monitor: JobMonitor) -> None:
        """Write the run's configuration under perfmon's names."""
        import yaml

        identity, members, described = self._identity, self._members, monitor.describe()
        config = {
            **self._options.document(),
            "save_dir": str(self._folder.path),
            "host_name": identity.host,
            "node_name": members.host,
            "num_nodes": len(identity.nodes or (identity.host,)),
            "user": identity.user,
            "scheduler": identity.scheduler,
            "job_id": identity.job_id,
            "pid": described["jobs"][identity.key].get("pids", []),
            "num_nvidia_gpus": len(described["hardware"].get("gpus") or ()),
            "perf_events": monitor.counts_events,
            "ipc_file": str(self._folder.ipc),
            "recording": str(members.recording),
        }
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        try:
            write_whole(self._folder.run_config(members.host), text.encode(), mode=FILE_MODE, folder_mode=FOLDER_MODE)
        except StorageError as error:
            logger.warning("%s", error)

    # --- output ------------------------------------------------------------------------------------------------------

    def _complain(self, text: str) -> None:
        logger.error("%s", text)
        self._print(f"fedmon: {escape_control(text)}\n")

    def _announce(self, text: str) -> None:
        if not (self._options.quiet or self._options.json):
            self._print(f"fedmon: {escape_control(text)}\n")

    def _print_json(self, reason: str, exit_code: int | None, *, is_merged: bool) -> None:
        document = {
            "job_id": self._identity.job_id,
            "host": self._members.host,
            "folder": str(self._folder.path),
            "recording": str(self._members.recording),
            "merged": str(self._folder.merged) if is_merged else None,
            "reason": reason,
            "exit_code": exit_code,
        }
        # The command's own output stays as it is.
        self._print(f"{json.dumps(document)}\n", to=1 if self._options.command else 0)

    def _print(self, text: str, *, to: int = 1) -> None:
        with contextlib.suppress(OSError):  # the output may be closed
            os.write(self._outputs[to], text.encode(errors="backslashreplace"))


def log_into(path: Path, *, verbose: bool) -> TextIO:
    """Write fedmon's log into a file of its owner from now on, and nowhere else; return it. Raises StorageError."""
    with storage_errors(path, "write the log"):
        path.touch(FILE_MODE)
        file = path.open("a", encoding="utf-8", errors="backslashreplace")
    log = logging.StreamHandler(file)
    form = OneLine("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    log.setFormatter(form)
    logging.raiseExceptions = False  # a record that finds no room on a full disk is dropped
    ours = logging.getLogger(OUR_LOGGER)
    ours.handlers, ours.propagate = [log], False  # the terminal's would write between the lines of the job
    ours.setLevel(logging.DEBUG if verbose else logging.INFO)
    return file
