"""Frames: whole ones come out however they are cut, and nothing that a plan writes is taken for more than it is."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.node.runs.supervision import (
    BadFrameError,
    Begun,
    Failure,
    FrameReader,
    LogLine,
    OutputTooLargeError,
    Piece,
    Scalars,
)
from fedmon.plan import frames
from fedmon.plan.context import PlanContext
from fedmon.plan.parcels import pack
from tests.plan.trials import heard


def frame(kind: bytes, fields: Any) -> bytes:
    payload = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return frames.header(kind, len(payload)) + payload


SAID = (
    frame(b"B", {})
    + frame(b"S", {"values": {"loss": 0.5, "n": None}, "step": 3})
    + frame(b"L", {"level": "INFO", "message": "hällo"})
    + frame(b"j", b'{"a":1}')
)


@pytest.mark.parametrize("size", [1, 2, 9, 10, 1000])
def test_frames_come_out_whole_however_they_are_cut(size: int) -> None:
    reader = FrameReader(output_bytes=100)
    found: list[Any] = []
    result = b""

    for start in range(0, len(SAID), size):
        for each in reader.feed(SAID[start : start + size]):
            if isinstance(each, Piece):
                result += each.data
            else:
                found.append(each)
    reader.close()

    assert found == [
        Begun(),
        Scalars(values={"loss": 0.5, "n": None}, step=3),
        LogLine(level="INFO", message="hällo"),
    ]
    assert (result, reader.result_format, reader.has_ended) == (b'{"a":1}', "json", True)


BAD = {
    "kind": frame(b"X", {}),
    "no json": frame(b"S", b"{"),
    "no object": frame(b"S", b"[]"),
    "nan": frame(b"S", b'{"values":{"a":NaN},"step":null}'),
    "infinite": frame(b"S", b'{"values":{"a":1e999},"step":null}'),
    "huge integer": frame(b"S", {"values": {"a": 10**320}, "step": None}),
    "text as number": frame(b"S", {"values": {"a": "1"}, "step": None}),
    "truth as number": frame(b"S", {"values": {"a": True}, "step": None}),
    "name": frame(b"S", {"values": {"a b": 1}, "step": None}),
    "long name": frame(b"S", {"values": {"a" * 65: 1}, "step": None}),
    "many names": frame(b"S", {"values": {f"a{n}": 1 for n in range(101)}, "step": None}),
    "step": frame(b"S", {"values": {"a": 1}, "step": 0.5}),
    "no values": frame(b"S", {"values": {}, "step": 1}),
    "no step": frame(b"S", {"values": {"a": 1}}),
    "level": frame(b"L", {"level": "LOUD", "message": "x"}),
    "message": frame(b"L", {"level": "INFO", "message": "x" * 4097}),
    "surrogate": frame(b"L", b'{"level":"INFO","message":"\\ud800"}'),
    "deep": frame(b"L", b"[" * 200_000),
    "state": frame(b"E", {"state": "succeeded", "reason": "", "type": "", "message": None, "traceback": None}),
    "reason": frame(b"E", {"state": "failed", "reason": "x" * 1025, "type": "", "message": None, "traceback": None}),
    "long": frames.header(b"L", frames.MAX_FRAME_BYTES + 1),
    "endless": frames.header(b"S", 2**64 - 1),
    "empty result": frames.header(b"j", 0),
    "after a result": frame(b"j", b"{}") + frame(b"j", b"{}"),
    "after a failure": frame(b"E", {"state": "failed", "reason": "", "type": ""}) + b"x",
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_frame_is_refused(what: str) -> None:
    with pytest.raises(BadFrameError):
        list(FrameReader(output_bytes=100).feed(BAD[what]))


def test_a_result_that_is_announced_too_large_is_refused_before_its_first_byte() -> None:
    with pytest.raises(OutputTooLargeError, match="the result has 101 bytes, and the job may return 100"):
        list(FrameReader(output_bytes=100).feed(frames.header(b"n", 101) + b"PK"))


@pytest.mark.parametrize("cut", [1, 8, 9, 20, len(SAID) - 1])
def test_a_channel_that_ends_inside_a_frame_is_noticed(cut: int) -> None:
    reader = FrameReader(output_bytes=100)
    list(reader.feed(SAID[:cut]))

    with pytest.raises(BadFrameError, match="in the middle"):
        reader.close()


@settings(max_examples=150)
@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from([b"", b"S", b"L", b"E", b"j"]))
def test_any_bytes_are_refused_or_frames_and_nothing_else_happens(pieces: list[bytes], kind: bytes) -> None:
    reader = FrameReader(output_bytes=1000)
    try:
        list(reader.feed(kind + (b"\0" * 7 + b"\x20" if kind else b"")))
        for piece in pieces:
            list(reader.feed(piece))
    except (BadFrameError, OutputTooLargeError):
        return


def test_a_report_of_a_signal_handler_amid_a_long_report_is_sent_after_it() -> None:
    long: dict[str, Any] = {f"n{'x' * 58}{number:03}": 1.0 for number in range(100)}
    ticks = itertools.count()
    with heard(pause_s=0.0005) as (context, _, received):
        before = signal.signal(signal.SIGALRM, lambda *_: context.report(tick=next(ticks)))
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
        for _ in range(300):
            context.report(**long)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        context.report(last=1)

    told = [each.values for each in FrameReader(output_bytes=100).feed(received) if isinstance(each, Scalars)]
    assert {each["tick"] for each in told if "tick" in each} == {*range(next(ticks))}
    assert [len(each) for each in told].count(100) == 300


def test_a_channel_sends_whole_frames_from_many_threads_and_nothing_after_the_result() -> None:
    def report(context: PlanContext) -> None:
        for step in range(200):
            context.report(step=step, n=step)

    with heard() as (context, channel, received):
        with ThreadPoolExecutor(4, initializer=threading.Barrier(4).wait) as threads:
            list(threads.map(report, [context] * 4))
        channel.send_result(pack({"a": 1}))
        context.log("too late")
    reader = FrameReader(output_bytes=100)
    found = list(reader.feed(received))
    reader.close()

    assert sum(isinstance(each, Scalars) for each in found) == 800
    assert not any(isinstance(each, LogLine | Failure) for each in found)
    assert reader.has_ended
