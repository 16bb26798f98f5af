"""What resources say in the log, under the names that NEPI gives to it."""

from __future__ import annotations

import functools
import logging

_OF_ALL = "fedmon.experiment.resource"


@functools.cache
def logger_of(rtype: str) -> logging.Logger:
    """Return the logger of the resources of a type."""
    return logging.getLogger(f"{_OF_ALL}.{rtype}")


class Logged:
    """Says things in the log, and whose they are."""

    @property
    def name(self) -> str:
        """Who says it."""
        return type(self).__name__

    @classmethod
    def get_rtype(cls) -> str:
        """Return of which type it is."""
        return cls.__name__

    @property
    def logger(self) -> logging.Logger:
        """The logger that it says things to, one for each type."""
        return logger_of(self.get_rtype())

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
        logger = self.logger
        if logger.isEnabledFor(level):
            parts = (text, out and f"stdout: {out}", err and f"stderr: {err}")
            logger.log(level, "%s", self.log_message(" ".join(part for part in parts if part)))
