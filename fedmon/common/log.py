"""Logging: records on the terminal and records that leave the node, safe against forged text."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable

OUR_LOGGER = "fedmon"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAX_TEXT = 4096

_UNUSUAL = re.compile(r"[^ -~]")
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Letters, marks and variation selectors that leave an empty place, or none, on the screen."""
_PATH = re.compile(
    r"(?P<kept>\b(?!file:)[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"()]+)"
    r"|(?P<quote>['\"])(?:~|file:/)?/.{0,1000}?(?P=quote)"
    r"|(?<![\w./])(?:~|file:/)?/[^\s:;,'\"()]+(?: (?:[^\s:;,'\"()]+ ){0,2}[^\s:;,'\"()]*(?:/|\.\w)[^\s:;,'\"()]*)*"
)
"""A URL, which may leave, or a path: in quotes, or with words behind it up to one with a slash or an ending."""


def escape_control(text: str, *, keep: str = "") -> str:
    r"""Make control, bidirectional and invisible characters visible, as ``\x1b`` or ``\u202e``.

    The result is one line. Characters in ``keep``, such as a newline in a listing, stay as they are.
    """

    def shown(found: re.Match[str]) -> str:
        is_visible = found[0] in keep or not is_hidden(found[0])
        return found[0] if is_visible else found[0].encode("unicode_escape").decode()

    return _UNUSUAL.sub(shown, text)


def escape_json(text: str) -> str:
    """Return JSON that means the same and whose hidden characters are escapes; line ends stay."""
    import json

    return re.sub(r"[^\n -~]", lambda found: json.dumps(found[0])[1:-1] if is_hidden(found[0]) else found[0], text)


def is_hidden(character: str) -> bool:
    """Tell whether a screen may not show a character: control, format, blank, unassigned, or half of one."""
    return not character.isprintable() or _BLANK.match(character) is not None


def without_paths(text: str) -> str:
    """Replace every absolute path, so that a text tells others nothing of how this machine is laid out."""
    return _PATH.sub(lambda found: found["kept"] or "(a path of the node)", text)


def configure_cli_logging(level: str) -> None:
    """Send the records of our loggers to stderr, one line each; a later call replaces an earlier one.

    ``level`` is one of LEVELS. Only the shell's commands call this; a library never configures logging.
    """
    logger = logging.getLogger(OUR_LOGGER)
    for earlier in [h for h in logger.handlers if isinstance(h, _TerminalHandler)]:
        logger.removeHandler(earlier)
    handler = _TerminalHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(lambda record: not hasattr(record, "fedmon_remote"))  # `fedmon logs` prints those of nodes
    logger.addHandler(handler)
    logger.setLevel(level)
    for library in ("matplotlib", "fpdf"):  # of no use to a reader: temporary folders, letters that a font lacks
        logging.getLogger(library).setLevel(logging.ERROR)


class OutgoingLogHandler(logging.Handler):
    """Hands records of fedmon's loggers to ``send(level, logger_name, text, created)``.

    ``level`` is one of LEVELS, ``text`` one line, ``created`` Unix time. Records that ``allows()`` denies are dropped
    and counted in ``dropped``, and the next one says how many. Paths of this machine are taken out. ``send`` must
    return at once; its own records are not handed out again. Safe from any thread.
    """

    def __init__(
        self,
        send: Callable[[str, str, str, float], None],
        *,
        level: int = logging.WARNING,
        allows: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(level)
        self._send, self._allows = send, allows
        self._guard = threading.Lock()
        self._inside = threading.local()
        self.dropped = 0
        self._unreported = 0

    def handle(self, record: logging.LogRecord) -> bool:
        """Hand out a record without logging's own lock, so that one slow record never holds up another thread."""
        is_ours = f"{record.name}.".startswith(f"{OUR_LOGGER}.")
        # A record that came from a node and is logged here again must not go round.
        is_remote = getattr(record, "fedmon_remote", False)
        if not is_ours or is_remote or getattr(self._inside, "busy", False) or not self.filter(record):
            return False
        self._inside.busy = True
        try:
            self.emit(record)
        finally:
            self._inside.busy = False
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Hand out one record unless there were too many."""
        with self._guard:
            if not self._allows():
                self.dropped += 1
                self._unreported += 1
                return
            unreported, self._unreported = self._unreported, 0
        try:
            text = _text(record)
            if unreported:
                text = f"{text} ({unreported} records before this one were dropped: too many at once)"
            level = LEVELS[max(0, min(record.levelno // 10, len(LEVELS)) - 1)]  # the standard one at or below it
            self._send(level, escape_control(record.name), text, record.created)
        except Exception:  # noqa: BLE001 - a record that cannot be formatted or sent must not stop the work it tells of
            self.dropped += 1


class _TerminalHandler(logging.StreamHandler):  # type: ignore[type-arg] # generic only in the stubs
    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr  # which a screen that is drawn in place replaces
        super().emit(record)


class OneLine(logging.Formatter):
    """Formats a record as one line without hidden characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return escape_control(super().format(record))


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text = f"{text} [{type(record.exc_info[1]).__name__}: {record.exc_info[1]}]"
    text = escape_control(without_paths(text))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT} characters more)"
