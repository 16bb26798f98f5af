"""The log of one host's run: one line a record, in a file of its own, and nothing on the job's output."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.log import OUR_LOGGER, escape_control
from fedmon.node.job.layout import FILE_MODE


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
