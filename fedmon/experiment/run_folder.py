"""Where the files of an experiment lie: one folder for the experiment, one in it for each run."""

from __future__ import annotations

import datetime
import os
import re
import secrets
import tempfile
from pathlib import Path

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import StorageError
from fedmon.experiment.errors import InvalidExperimentError

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class RunFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The names of an experiment and of one of its runs, and their folders."""

    exp_id: str
    run_id: str
    local_dir: Path

    @property
    def exp_dir(self) -> Path:
        """What belongs to the experiment, whichever run."""
        return self.local_dir / self.exp_id

    @property
    def run_dir(self) -> Path:
        """What belongs to this run."""
        return self.exp_dir / self.run_id

    def make(self) -> Path:
        """Make the folder of the run, for its owner alone, and return it. Raises StorageError."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"cannot make the folder of the run {self.run_dir}: {error.strerror}") from error
        return self.run_dir


def run_folder(exp_id: str | None, local_dir: str | Path | None, run_id: str | None = None) -> RunFolder:
    """Return the folder of a run, a new one where ``run_id`` is null; nothing is made yet.

    ``exp_id`` is made up where it is null; ``local_dir`` is then the system's folder for temporary files, as in NEPI.
    Raises InvalidExperimentError for an id that is no plain file name.
    """
    exp_id = f"exp-{secrets.token_hex(4)}" if exp_id is None else exp_id
    for what, name in (("exp_id", exp_id), ("run_id", run_id)):
        if name is not None and not is_folder_name(name):
            raise InvalidExperimentError(
                f"{what} {name!r} cannot name a folder: take up to 100 letters, digits, '-', '_' and '.', "
                "no '.' and no '-' first"
            )
    where = path_of("local_dir", tempfile.gettempdir() if local_dir is None else local_dir)
    return RunFolder(exp_id=exp_id, run_id=run_id or run_id_of(utc_now()), local_dir=where)


def path_of(what: str, given: object) -> Path:
    """Return a path that a caller gave as an absolute one. Raises InvalidExperimentError for what is none."""
    try:
        if isinstance(given, str | os.PathLike) and "\0" not in os.fsdecode(given):
            return Path(given).expanduser().absolute()
    except (TypeError, ValueError, RuntimeError) as error:  # such as the home of nobody
        raise InvalidExperimentError(f"{what} is {given!r:.80}, and no path: {error}") from error
    raise InvalidExperimentError(f"{what} is {given!r:.80}, and must be a path")


def is_folder_name(name: object) -> bool:
    """Tell whether an id can be the name of a folder, on any system."""
    return type(name) is str and bool(_ID.fullmatch(name))


def run_id_of(moment: datetime.datetime) -> str:
    """Return the id of a run that begins at a moment: 20 digits, YYYYMMDDhhmmss and microseconds."""
    return moment.strftime("%Y%m%d%H%M%S%f")
