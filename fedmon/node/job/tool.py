"""One run of `fedmon job` on one host: measures the machine and the job until something ends it, then writes it up."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.log import OUR_LOGGER, escape_control
from fedmon.node.job.channel import Channel
from fedmon.node.job.ending import AlsoWhen, Endings
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.layout import FILE_MODE, JobFolder
from fedmon.node.job.options import LABELS, JobOptions

if TYPE_CHECKING:
    from fedmon.node.job.measured import MeasuredJob

IN_PROGRESS, FINISHED = "INPROGRESS", "FINISHED"
_MOST_BYTES = 64
_MOST_TRIES = 5

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
        from fedmon.node.job.limit import asked_at, is_of_this_run

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
        from fedmon.node.job.merge import postprocess

        postprocess(folder, exports=exports, report=report, log=logger)
    return merged


class LogFile(logging.Handler):
    """Writes what fedmon logs into a file, and nowhere else, until it is closed.

    A record that cannot be written, as on a full disk, is counted in ``lost``. Raises StorageError when the file
    cannot be opened. ``descriptor`` is that of the open file.
    """

    def __init__(self, path: Path, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.INFO)
        self.path = path
        self.lost = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.descriptor = os.open(path, flags, FILE_MODE)
        except OSError as error:
            raise StorageError(f"cannot write the log {path}: {error.strerror}") from error
        logger = logging.getLogger(OUR_LOGGER)
        for handler in list(logger.handlers):  # that of the terminal would write among what the job prints
            logger.removeHandler(handler)
        logger.addHandler(self)
        logger.setLevel(self.level)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as one line, at once."""
        try:
            line = f"{_time(record)} {record.levelname} {record.name}: {self.format(record)}"
            data = f"{escape_control(line)}\n".encode(errors="replace")
            if os.write(self.descriptor, data) < len(data):
                self.lost += 1
        except Exception:  # noqa: BLE001 - a record that cannot be written must not stop the work it tells of
            self.lost += 1

    def take_output(self) -> None:
        """Have whatever this process prints go into the log from now on."""
        os.dup2(self.descriptor, 1)
        os.dup2(self.descriptor, 2)

    def close(self) -> None:
        """Log nowhere any more; safe to call twice."""
        logging.getLogger(OUR_LOGGER).removeHandler(self)
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1
        super().close()


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class StopFile:
    """Says when to stop: FINISHED in it, nothing in it, or no file at all; whatever else is there is no reason to.

    ``begin`` puts INPROGRESS into it. What cannot be read or written is said once in the log, and never ends a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_made = False
        self._problem = ""

    def begin(self, is_meant: Callable[[float], bool] = lambda _changed: False) -> None:
        """Write INPROGRESS, unless the run was stopped already.

        A FINISHED that lies there belongs to an earlier run and is replaced, unless ``is_meant`` says that it is for
        this one, by the time at which it was written by the clock of the file server, in Unix seconds. One that comes
        while it is replaced is heard.
        """
        for _ in range(_MOST_TRIES):
            try:
                descriptor = self._open()
            except FileNotFoundError:
                if self._make():
                    return
                continue
            except OSError as error:
                self._say(f"cannot be read: {error.strerror}")
                return
            try:
                text, changed = _content(descriptor)
                is_ours = _is_stop(text) and is_meant(changed)
                if text != IN_PROGRESS and not is_ours:
                    self._write(IN_PROGRESS)
                    # Whoever had opened the file that was replaced wrote into that one.
                    text, written = _content(descriptor)
                    if self._is_made and written != changed and _is_stop(text):
                        self._write(FINISHED)
                    return
            finally:
                os.close(descriptor)
            self._is_made = True
            return

    def says_stop(self) -> str | None:
        """Return why to stop, None to go on."""
        if not self._is_made:
            return None
        try:
            descriptor = self._open()
            try:
                text, _ = _content(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return "it was removed"
        except OSError as error:
            self._say(f"cannot be read: {error.strerror}")
            return None
        if _is_stop(text):
            return f"it says {FINISHED}" if text else "it is empty"
        if text != IN_PROGRESS:
            self._say(f"holds neither {IN_PROGRESS} nor {FINISHED}")
        return None

    def _open(self) -> int:
        """Open what lies there. Raises OSError, also for what is no file."""
        # A pipe of this name would hold up who opens it.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(0, "it is no file")
        return descriptor

    def _make(self) -> bool:
        """Make the file; False when somebody else just did."""
        return self._write(IN_PROGRESS, is_new=True)

    def _write(self, text: str, *, is_new: bool = False) -> bool:
        """Put a file with this text there, whole; False when there is one already and ``is_new`` asks for none."""
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            try:
                new.write_text(f"{text}\n")
                if is_new:
                    try:
                        os.link(new, self.path)
                    except FileExistsError:
                        return False
                    except OSError:  # this file system has no links
                        new.replace(self.path)
                else:
                    new.replace(self.path)
            finally:
                with contextlib.suppress(OSError):
                    new.unlink()
        except OSError as error:
            self._say(f"cannot be written: {error.strerror}")
            return True
        self._is_made = True
        return True

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("%s %s: it cannot stop the measuring as long as that is so", self.path, problem)
        self._problem = problem


def _content(descriptor: int) -> tuple[str, float]:
    """Return what a file holds, and when it was changed. Raises OSError."""
    text = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace").strip()
    return text, os.fstat(descriptor).st_mtime


def _is_stop(text: str) -> bool:
    return not text or text.upper() == FINISHED


def run_config(
    options: JobOptions,
    identity: JobIdentity,
    folder: JobFolder,
    *,
    host: str,
    recording: Path,
    pids: Sequence[int],
    gpus: int,
    has_perf: bool,
) -> dict[str, Any]:
    """Return a run's configuration; keys and their order are perfmon's, and what only fedmon has comes last."""
    nodes = identity.nodes or (identity.host,)
    return {
        "save_dir": str(folder.path),
        "prefix": options.prefix,
        "launcher": options.launcher,
        "sampling_freq": options.sampling_freq,
        "check_point": options.check_point,
        "gen_report": options.gen_report,
        "export": list(options.export),
        **{name: options.labels.get(name) for name in LABELS},
        "verbose": options.verbose,
        "host_name": identity.host,
        "node_name": host,
        "master_node": nodes[0],
        "num_nodes": len(nodes),
        "user": identity.user,
        "scheduler": identity.scheduler,
        "job_id": identity.job_id,
        "script_name": "fedmon job",
        "metrics": [
            "meta_data",
            "cpu_metrics",
            *(["perf_metrics"] if has_perf else []),
            *(["nv_gpu_metrics"] if gpus else []),
        ],
        "num_nvidia_gpus": gpus,
        "pid": list(pids),
        "ipc_file": str(folder.ipc),
        "data_dir": str(folder.metrics),
        "plot_dir": str(folder.plots),
        "report_path": str(folder.report_pdf),
        "temp_path": str(recording),
        "perf_event_file": None,
        "db_lock_file": None,
        "command": options.told_command,
        "broker": None if options.broker is None else options.broker.url,
    }


def write_run_config(path: Path, document: dict[str, Any]) -> None:
    """Write the configuration, whole or not at all. Raises StorageError."""
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        JobFolder.make_folder(path.parent)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE), "w") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
