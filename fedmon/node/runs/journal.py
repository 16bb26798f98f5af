"""What happens to a job, written down a line at a time, within bounds that no plan can exceed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fedmon.common.errors import StorageError
from fedmon.node.runs.order import Event, Logged, Reported

RATE_PER_S = 200.0
BURST = 2000
MAX_EVENTS = 100_000
MAX_BYTES = 33_554_432
_FILE_MODE = 0o600


class Journal:
    """Appends events; belongs to the keeper.

    Scalars and log lines beyond ``RATE_PER_S`` with bursts of ``BURST``, or beyond ``MAX_EVENTS`` or ``MAX_BYTES``
    altogether, are counted and not kept, which one line says at the first of them. A full disk loses lines, never the
    job.
    """

    def __init__(self, path: Path, *, mono: float) -> None:
        """Make the file; ``mono`` is the monotonic time of now. Raises StorageError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(path, flags, _FILE_MODE)
        except OSError as error:
            raise StorageError(f"cannot make {path}: {error.strerror}") from error
        self.scalars = 0
        """How many reports came, kept or not."""
        self.dropped = 0
        self._tokens, self._filled = float(BURST), mono
        self._events = self._bytes = 0
        self._is_torn = False

    def add(self, event: Event) -> None:
        """Write an event of the keeper's own."""
        self._write(event)

    def report(self, t: float, values: dict[str, float | None], step: int | None, *, mono: float) -> None:
        """Write what the plan reported at Unix time ``t``."""
        number, self.scalars = self.scalars, self.scalars + 1
        if self._admits(t, mono):
            self._write(Reported(t=t, number=number, values=values, step=step))

    def log(self, event: Logged, *, mono: float) -> None:
        """Write what the plan logged."""
        if self._admits(event.t, mono):
            self._write(event)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _admits(self, t: float, mono: float) -> bool:
        self._tokens = min(self._tokens + (mono - self._filled) * RATE_PER_S, float(BURST))
        self._filled = mono
        is_full = self._events >= MAX_EVENTS or self._bytes >= MAX_BYTES
        if self._tokens >= 1 and not is_full:
            self._tokens -= 1
            return True
        if not self.dropped:
            bound = (
                f"{MAX_EVENTS} reports and log lines, or {MAX_BYTES} bytes of them, are kept of one job"
                if is_full
                else f"{RATE_PER_S:g} reports and log lines a second, {BURST} at once, are kept"
            )
            self._write(Logged(t=t, level="WARNING", message=f"{bound}: those beyond are counted and left out"))
        self.dropped += 1
        return False

    def _write(self, event: Event) -> None:
        line = (b"\n" if self._is_torn else b"") + msgspec.json.encode(event) + b"\n"
        try:
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        # After half a line the next one begins anew, and the reader passes over the half.
        self._is_torn = written < len(line) and (written > 0 or self._is_torn)
        self._events += 1
        self._bytes += written
