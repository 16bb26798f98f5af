"""What is logged stays one harmless line, and what leaves the node is ours, limited and never in the way."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedmon.common.log import MAX_TEXT, OutgoingLogHandler, escape_control

ATTACKS = [
    "plain\nforged line", "\r\n", "tab\there", "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "\x85next", "nul\x00",
    "\x7f", "\u2028line", "\u2029paragraph", "\u202egnp.exe", "\u2066isolate\u2069", "\u200eleft", "\u061carabic",
    "zero\u200bwidth", "\ufeffbom", "soft\u00adhyphen", "\U000e0041tag", "\ud800surrogate", "\x1bP+q\x1b\\",
    "\u3164filler", "no\u00a0break", "vary\ufe0f", "\ue000own", "\u0378unassigned",
    "\x08\x08\x08", "\x0b\x0c", "\x1b[2J\x1b[H", "\u2060joiner", "\ufff9note",
]  # fmt: skip


@pytest.mark.parametrize("text", ATTACKS, ids=ascii)
def test_hidden_characters_become_visible_on_one_line(text: str) -> None:
    shown = escape_control(text)

    assert shown.isprintable()
    assert len(shown.splitlines()) == 1
    assert shown.encode()
    assert escape_control(shown) == shown


def test_what_is_visible_stays_as_it_is() -> None:
    text = "Größe 5 µm, 東京, עברית, 😀 a\\b"

    assert escape_control(text) == text
    assert escape_control("\x1b\n\u202e\U000e0041") == "\\x1b\\n\\u202e\\U000e0041"


def test_a_listing_keeps_its_line_ends_only() -> None:
    assert escape_control("a\n\tb\x1b\r\n", keep="\n\t") == "a\n\tb\\x1b\\r\n"


class Sent:
    """Receives what a handler hands out, while it is ``allowed``."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, str, float]] = []
        self.allowed = True

    def __call__(self, level: str, name: str, text: str, created: float) -> None:
        self.records.append((level, name, text, created))

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text, _ in self.records]


@contextlib.contextmanager
def attached(handler: OutgoingLogHandler, logger: logging.Logger) -> Iterator[OutgoingLogHandler]:
    """Have a logger's records of every level go to a handler."""
    previous = logging.getLogger("fedmon").level
    logger.addHandler(handler)
    logging.getLogger("fedmon").setLevel(1)
    yield handler
    logger.removeHandler(handler)
    logging.getLogger("fedmon").setLevel(previous)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def handler(sent: Sent) -> Iterator[OutgoingLogHandler]:
    with attached(OutgoingLogHandler(sent, allows=lambda: sent.allowed), logging.getLogger()) as handler:
        yield handler


@pytest.mark.usefixtures("handler")
def test_warnings_of_our_own_loggers_leave_with_level_name_and_time(sent: Sent) -> None:
    logging.getLogger("fedmon.node.requests.router").warning("dropped %d\nfrom %s", 3, "\x1b[31mx")
    logging.getLogger("fedmon").error("bad")
    logging.getLogger("fedmon.node.requests.router").info("quiet")
    logging.getLogger("paho").error("not ours")
    logging.getLogger("fedmonster").error("not ours either")

    assert [record[:3] for record in sent.records] == [
        ("WARNING", "fedmon.node.requests.router", "dropped 3\\nfrom \\x1b[31mx"),
        ("ERROR", "fedmon", "bad"),
    ]
    assert all(created > 1_700_000_000 for *_, created in sent.records)


@pytest.mark.usefixtures("handler")
def test_a_record_that_came_from_a_node_does_not_go_round(sent: Sent) -> None:
    logging.getLogger("fedmon.node.n1").error("from afar", extra={"fedmon_remote": True})

    assert sent.records == []


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("cannot open /srv/wards/a.csv: it is gone", "cannot open (a path of the node): it is gone"),
        ("the register /srv/my wards/state.sqlite is full", "the register (a path of the node) is full"),
        ("the table /srv/my wards.csv: gone", "the table (a path of the node): gone"),
        (
            "no '/srv/my wards', b\"/x y\" or ~/z",
            "no (a path of the node), b(a path of the node) or (a path of the node)",
        ),
        ("at=/srv/a open:/srv/b file:///srv/c", "at=(a path of the node) open:(a path of the node)"),
        (
            "http://h:1/files/x, mqtt://h:1, and/or, 1/2, nodes/a",
            "http://h:1/files/x, mqtt://h:1, and/or, 1/2, nodes/a",
        ),
    ],
)
@pytest.mark.usefixtures("handler")
def test_paths_stay_and_urls_leave(sent: Sent, said: str, left: str) -> None:
    logging.getLogger("fedmon.x").error("%s", said)
    try:
        raise OSError(2, "No such file", "/srv/wards/b.csv")
    except OSError:
        logging.getLogger("fedmon.y").exception("failed")

    assert sent.texts[0].startswith(left)
    assert "srv" not in "".join(sent.texts)


@pytest.mark.usefixtures("handler")
def test_an_exception_is_told_in_its_line_without_a_traceback(sent: Sent) -> None:
    try:
        raise KeyError("secret\nkey")
    except KeyError:
        logging.getLogger("fedmon.x").exception("callback failed")

    assert sent.texts == ["callback failed [KeyError: 'secret\\nkey']"]


def test_too_many_records_are_dropped_counted_and_reported(sent: Sent, handler: OutgoingLogHandler) -> None:
    logger = logging.getLogger("fedmon.x")

    for allowed in (True, False, False, True, True):
        sent.allowed = allowed
        logger.warning("record")

    assert sent.texts == ["record", "record (2 records before this one were dropped: too many at once)", "record"]
    assert handler.dropped == 2


@pytest.mark.usefixtures("handler")
def test_an_over_long_record_is_cut(sent: Sent) -> None:
    logging.getLogger("fedmon.x").warning("x" * (MAX_TEXT + 10))

    assert sent.texts == ["x" * MAX_TEXT + "... (10 characters more)"]


def test_what_sending_itself_logs_is_not_sent() -> None:
    logger, texts = logging.getLogger("fedmon.loop"), []

    def send(_level: str, _name: str, text: str, _created: float) -> None:
        texts.append(text)
        logger.error("sending failed")

    with attached(OutgoingLogHandler(send), logger):
        logger.warning("once")

    assert texts == ["once"]


def test_a_thread_that_hangs_in_sending_does_not_stop_another() -> None:
    logger, release, arrived, texts = logging.getLogger("fedmon.hang"), threading.Event(), threading.Event(), []

    def send(_level: str, _name: str, text: str, _created: float) -> None:
        if text == "hangs":
            arrived.set()
            release.wait(10.0)
        texts.append(text)

    with attached(OutgoingLogHandler(send), logger), ThreadPoolExecutor(1) as pool:
        pool.submit(logger.warning, "hangs")
        assert arrived.wait(60)
        logger.warning("goes on")
        while_hanging = list(texts)
        release.set()

    assert while_hanging == ["goes on"]


def test_a_record_that_cannot_be_formatted_or_sent_harms_nobody() -> None:
    logger, texts = logging.getLogger("fedmon.odd"), []

    def send(_level: str, _name: str, text: str, _created: float) -> None:
        if text == "cannot be sent":
            raise OSError("no connection")
        texts.append(text)

    with attached(OutgoingLogHandler(send), logger) as handler:
        logger.propagate = False
        logger.warning("%d", "no number")
        logger.warning("cannot be sent")
        logger.warning("fine")
        logger.propagate = True

    assert texts == ["fine"]
    assert handler.dropped == 2


def test_custom_levels_leave_as_the_standard_level_below() -> None:
    logger, sent = logging.getLogger("fedmon.levels"), Sent()
    with attached(OutgoingLogHandler(sent, level=1), logger):
        for level in (5, 15, 35, 99):
            logger.log(level, "x")

    assert [level for level, *_ in sent.records] == ["DEBUG", "DEBUG", "WARNING", "CRITICAL"]


def test_the_shell_logs_our_records_to_stderr_one_line_each() -> None:
    code = (
        "import logging; from fedmon.common.log import configure_cli_logging as c; c('DEBUG'); c('INFO');"
        "l = logging.getLogger('fedmon.x'); l.debug('hidden'); l.warning('two\\nlines \\x1b[0m');"
        "logging.getLogger('other').info('not ours')"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.endswith("WARNING fedmon.x: two\\nlines \\x1b[0m\n")


def test_importing_the_package_configures_no_logging() -> None:
    code = (
        "import logging, fedmon, fedmon.common.log; print(logging.getLogger('fedmon').handlers, logging.root.handlers)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[] []\n"
