"""The paths of one job in the folder that its hosts share; perfmon's names where perfmon has one."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Self

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.files import storage_errors

FOLDER_MODE = 0o700
FILE_MODE = 0o600
MAX_NAME = 64
_DIGEST = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9._@+,=\[\]-]")
_UNSAFE_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
RECORDING_SUFFIX = ".fmr"


class JobFolder:
    """The paths of one job in the folder that its hosts share; no id or host name leads out of it.

    ``save_dir`` is absolute. ``key`` is the job's, of ``job_id`` as its scheduler writes it. ``path`` is the folder
    named ``prefix`` in ``save_dir``, or ``job-metrics-KEY``; several jobs may use it. Raises InvalidInputError if the
    prefix is not a plain name.
    """

    def __init__(self, save_dir: Path, prefix: str | None, key: str, *, job_id: str | None = None) -> None:
        self.save_dir, self.key = save_dir, key
        self.path = self.save_dir / (f"job-metrics-{self.key}" if prefix is None else _checked_prefix(prefix))
        self.ipc = self.save_dir / f".ipc-{file_name(job_id if job_id is not None else key)}"
        self.hosts = self.path / "hosts" / self.key
        self.recordings = self.path / "recordings" / self.key
        self.logs = self.path / "logs" / self.key
        self.metrics = self.path / "metrics"
        self.plots = self.path / "plots"
        self.merged = self.path / f"{self.key}{RECORDING_SUFFIX}"
        self.report_html = self.path / f"job-report-{self.key}.html"

    @classmethod
    def found(cls, path: Path) -> list[Self]:
        """Return every job in a folder, by key. Raises NotFoundError if there is none, and StorageError."""
        keys: list[str] = []
        with storage_errors(path, "read"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            keys = sorted(each.name for each in (path / "hosts").iterdir() if each.is_dir())
        if not keys:
            raise NotFoundError(
                f"no job in {path}: name the folder that 'fedmon job' made, such as job-metrics-4711, or its --prefix"
            )
        return [cls(path.parent, path.name, key) for key in keys]

    def recording(self, host: str) -> Path:
        """Return one host's recording; no other host writes there."""
        return self.recordings / f"{file_name(host)}{RECORDING_SUFFIX}"

    def log(self, host: str) -> Path:
        """Return one host's log."""
        return self.logs / f"{file_name(host)}.log"

    def run_config(self, host: str) -> Path:
        """Return the file for one host's options."""
        return self.path / "configs" / f"{file_name(host)}_run_config.yml"

    def make(self) -> None:
        """Make the folders that a host needs while it measures, for their owner only. Raises StorageError."""
        with storage_errors(self.save_dir, "make the folder"):
            self.save_dir.mkdir(parents=True, exist_ok=True)
        for each in (self.hosts, self.recordings, self.logs):
            for parent in (self.path, each.parent, each):
                self.make_folder(parent)

    @staticmethod
    def make_folder(path: Path) -> None:
        """Make one folder for its owner only, if it is missing. Raises StorageError."""
        with storage_errors(path, "make the folder"):
            path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def id_name(text: str) -> str:
    """Return a text as an id: unchanged if it is one, else as in `file_name`."""
    return file_name(text, unsafe=_UNSAFE_IN_IDS)


def file_name(text: str, *, unsafe: re.Pattern[str] = _UNSAFE) -> str:
    """Return a text as a file name: unchanged if that is safe, else made safe, with a digest that keeps it unique."""
    safe = unsafe.sub("-", text)
    if safe[:1] in ("", ".", "-"):
        safe = f"_{safe[1:]}"
    if safe == text and len(text) <= MAX_NAME:
        return text
    import hashlib  # takes milliseconds of a job's start, and few names need it

    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{safe[: MAX_NAME - _DIGEST - 1]}-{digest}"


def _checked_prefix(prefix: str) -> str:
    is_name = prefix.isprintable() and "/" not in prefix and prefix.strip() not in ("", ".", "..")
    if not is_name or len(prefix.encode()) > 255:
        raise InvalidInputError(
            f"prefix {prefix[:80]!r} is not usable: it names one folder in that of --save_dir, without '/' and '..'"
        )
    return prefix
