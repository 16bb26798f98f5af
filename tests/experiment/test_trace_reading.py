"""Traces are read whole, in blocks, by place and by size; nothing outside their folder is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment.attributes import Trace, TraceAttr, read_trace, trace_path
from fedmon.experiment.errors import InvalidAttributeError, TraceNotReadableError


@pytest.fixture
def stdout(tmp_path: Path) -> Path:
    path = tmp_path / "stdout"
    path.write_bytes(b"a" * 512 + b"b" * 512 + b"c" * 10)
    return path


def test_a_trace_is_read_whole_or_by_blocks_and_says_its_place_and_size(stdout: Path) -> None:
    assert read_trace(stdout) == "a" * 512 + "b" * 512 + "c" * 10
    assert (read_trace(stdout, TraceAttr.PATH), read_trace(stdout, "size")) == (str(stdout), 1034)
    blocks = [read_trace(stdout, TraceAttr.STREAM, 512, offset) for offset in range(4)]
    assert blocks == ["a" * 512, "b" * 512, "c" * 10, ""]
    assert read_trace(stdout, TraceAttr.STREAM, block=4, offset=256) == "cccc"
    assert read_trace(stdout, TraceAttr.STREAM, block=10**12, offset=10**12) == ""


@pytest.mark.parametrize("asked", [{"block": 0}, {"block": -1}, {"offset": -1}, {"attr": "tail"}])
def test_what_cannot_be_asked_is_refused_by_name(stdout: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(TraceNotReadableError):
        read_trace(stdout, **{"attr": "stream", **asked})


@pytest.mark.parametrize("attr", list(TraceAttr))
def test_a_trace_that_is_not_there_is_named(tmp_path: Path, attr: TraceAttr) -> None:
    with pytest.raises(TraceNotReadableError, match="stdout cannot be read: nothing was written yet"):
        read_trace(tmp_path / "stdout", attr)


def test_a_pipe_or_a_folder_in_place_of_a_trace_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(TraceNotReadableError, match="it is not a file"):
            read_trace(path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "", "out\0", "link/x"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)

    with pytest.raises(TraceNotReadableError):
        trace_path(tmp_path / "run", name)
    assert trace_path(tmp_path, "logs/out.txt") == tmp_path / "logs" / "out.txt"


def test_a_trace_needs_a_name() -> None:
    with pytest.raises(InvalidAttributeError):
        Trace("", "help")
    assert Trace("stdout", "help").enabled is False
