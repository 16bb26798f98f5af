"""What a job prints is kept within its bound: the beginning and the end, with what is missing counted."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.wire.runs import TracePiece
from fedmon.node.runs.folder import JobFolder, TraceWriter
from tests.support.full_disk import files_of_at_most


def whole(folder: Path, max_bytes: int = 1000) -> tuple[str, int]:
    """Read page by page until nothing comes; return the text and how much was skipped."""
    text, skipped, offset = "", 0, 0
    while True:
        page = JobFolder(folder).trace("t", offset, max_bytes)
        text, skipped = text + page.text, skipped + page.skipped_bytes
        if page.next_offset == offset:
            return text, skipped
        offset = page.next_offset


def test_of_more_the_first_and_the_last_bytes_are_kept_and_the_rest_is_counted(tmp_path: Path) -> None:
    printed = b"".join(b"%07d\n" % number for number in range(100_000))
    trace = TraceWriter(tmp_path / "t", size_bytes=4096)
    for start in range(0, len(printed), 777):
        trace.write(printed[start : start + 777])

    text, skipped = whole(tmp_path)

    last = len(text) - 2048
    assert 1024 <= last <= 2048
    assert text.encode() == printed[:2048] + printed[-last:]
    assert skipped == len(printed) - len(text)
    assert JobFolder(tmp_path).trace("t", 0, 10).size_bytes == len(printed)
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) == len(text)


@settings(max_examples=100)
@given(
    pieces=st.lists(st.binary(max_size=40), max_size=20),
    size=st.integers(2, 64),
    offset=st.integers(0, 300),
    page=st.integers(4, 50),
)
def test_any_page_is_what_was_printed_there(pieces: list[bytes], size: int, offset: int, page: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = TraceWriter(Path(folder) / "t", size_bytes=size)
        for piece in pieces:
            trace.write(piece)
        printed = b"".join(pieces)

        found = JobFolder(Path(folder)).trace("t", offset, page)

        assert found.size_bytes == len(printed)
        assert found.offset == min(offset, len(printed)) + found.skipped_bytes
        assert found.text == printed[found.offset : found.next_offset].decode(errors="replace")
        assert found.next_offset > offset or offset >= len(printed), "a reader has to get on"


def test_a_character_is_not_cut_in_two(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "t", size_bytes=1000)
    trace.write("aé€😀".encode() * 20)

    assert whole(tmp_path, max_bytes=7) == ("aé€😀" * 20, 0)


def test_the_beginning_of_a_character_waits_for_its_rest_until_the_job_is_over(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    lock = folder.prepare()  # that of a living keeper
    trace = TraceWriter(tmp_path / "t", size_bytes=1000)
    begun, rest = "😀".encode()[:2], "😀".encode()[2:]

    trace.write(b"a" + begun)
    found = [folder.trace("t", offset, 1000) for offset in (0, 1)]
    trace.write(rest + begun)
    found += [folder.trace("t", offset, 1000) for offset in (1, 5)]
    lock.release()
    found.append(folder.trace("t", 5, 1000))

    told = [("a", 1), ("", 1), ("😀", 5), ("", 5), ("\ufffd", 7)]
    assert [(each.text, each.next_offset) for each in found] == told


def test_a_reader_beside_a_fast_writer_sees_only_what_was_printed_there(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "t", size_bytes=8192)
    line = 8
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            trace.write(b"".join(b"%07d\n" % each for each in range(number, number + 100)))
            number += 100

    writer = threading.Thread(target=write, name="writer")
    writer.start()
    wrong, offset = [], 0
    try:
        for _ in range(1500):
            page = JobFolder(tmp_path).trace("t", offset, 1024)
            first = -page.offset % line
            for start in range(first, len(page.text) - line + 1, line):
                expected = f"{(page.offset + start) // line:07d}\n"
                if page.text[start : start + line] != expected:
                    wrong.append((page.offset + start, page.text[start : start + line]))
            offset = page.next_offset
    finally:
        stop.set()
        writer.join()

    assert wrong == []


def test_a_full_disk_loses_what_is_printed_and_stops_nobody(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "t", size_bytes=2**20)
    trace.write(b"kept")

    with files_of_at_most(len(b"kept")):
        trace.write(b"lost" * 100)

    assert JobFolder(tmp_path).trace("t", 0, 100).text == "kept"


def test_where_nothing_was_printed_there_is_nothing(tmp_path: Path) -> None:
    assert JobFolder(tmp_path).trace("t", 5, 100) == TracePiece(offset=5, text="", next_offset=5, size_bytes=0)
