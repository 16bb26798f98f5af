"""What resources say in the log, under the names that NEPI gives to it."""

from __future__ import annotations

import logging

logger = logging.getLogger("fedmon.researcher.experiment.resource")


class Logged:
    """Says things in the log, and whose they are."""

    @property
    def name(self) -> str:
        """Who says it."""
        return type(self).__name__

    def debug(self, text: str, out: str | None = None, err: str | None = None) -> None:
        """Say what helps to find a fault; ``out`` and ``err`` are what a command wrote."""
        self._say(logging.DEBUG, text, out, err)

    def info(self, text: str, out: str | None = None, err: str | None = None) -> None:
        """Say how it goes."""
        self._say(logging.INFO, text, out, err)

    def warning(self, text: str, out: str | None = None, err: str | None = None) -> None:
        """Say what may go wrong."""
        self._say(logging.WARNING, text, out, err)

    warn = warning

    def error(self, text: str, out: str | None = None, err: str | None = None) -> None:
        """Say what went wrong."""
        self._say(logging.ERROR, text, out, err)

    def log_message(self, text: str) -> str:
        """Return a text as it stands in the log."""
        return f"{self.name}: {text}"

    def _say(self, level: int, text: str, out: str | None, err: str | None) -> None:
        if logger.isEnabledFor(level):
            parts = (text, out and f"stdout: {out}", err and f"stderr: {err}")
            logger.log(level, "%s", self.log_message(" ".join(part for part in parts if part)))
