"""Batches of samples: each comes back as it was, and a damaged one is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.common.errors import InvalidMessageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire import codec
from fedmon.common.wire.runs import JobScalar, RunScalars
from fedmon.common.wire.samples import AddScalar, Columns, SamplesReply

BATCH = Batch(
    node_id="site-a",
    boot=3,
    stream="host",
    seq=40,
    t=[1.5, 2.5],
    mono=[10.0, 11.0],
    columns={'host_cpu_seconds_total{mode="user"}': [1.0, None], "host_load1": [0.5, 0.25]},
    reasons={'host_cpu_seconds_total{mode="user"}': "failed: OSError"},
)
PLAIN = codec.encode(BATCH)


@given(
    columns=st.dictionaries(
        st.text(), st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=2)
    ),
    reasons=st.dictionaries(st.text(), st.text()),
    stream=st.text(max_size=256),
)
def test_any_text_in_names_and_reasons_comes_back(
    columns: dict[str, list[float | None]], reasons: dict[str, str], stream: str
) -> None:
    batch = msgspec.structs.replace(BATCH, columns=columns, reasons=reasons, stream=stream)

    assert codec.decode_telemetry(codec.encode(batch)) == batch


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"seq":40', '"seq":40,"deep":' + "[" * 80_000, "not valid JSON"),
        ('"mono":[10.0,11.0]', '"mono":[10.0]', "differ in length"),
        ("[0.5,0.25]", "[0.5]", "differ in length"),
        ("[0.5,0.25]", "[0.5,NaN]", "not valid JSON"),
        ('"protocol_version":"fedmon/1",', "", "protocol_version"),
        ('"protocol_version":"fedmon/1"', '"protocol_version":"fedmon/2"', "speaks 'fedmon/2'"),
        ('"command":"sample",', "", "command"),
        ('"seq":40', '"seq":-1', ">= 0"),
        ('"node_id":"site-a"', '"node_id":"a/b"', "regex"),
        ('"seq":40,', "", "missing required field `seq`"),
    ],
)
def test_a_damaged_batch_is_refused(old: str, new: str, reason: str) -> None:
    text = PLAIN.decode()
    assert old in text
    damaged = text.replace(old, new).encode()

    with pytest.raises(InvalidMessageError, match=re.escape(reason)):
        codec.decode_telemetry(damaged)


def test_a_page_with_a_damaged_batch_is_refused() -> None:
    uneven = Columns(seq=2, t=[1.0, 2.0], mono=[1.0, 2.0], columns={"host_load1": [0.5]})
    page = SamplesReply(
        researcher_id="r",
        id="1",
        session="s",
        sequence=1,
        node_id="site-a",
        boot=1,
        stream="host",
        batches=[Columns(seq=1, t=[1.0], mono=[1.0], columns={"host_load1": [0.5]}), uneven],
        next_seq=None,
        oldest_seq=0,
        last_seq=9,
    )

    with pytest.raises(InvalidMessageError, match="differ in length"):
        codec.decode_reply(codec.encode(page))


REASONS = ',"reasons":{"host_cpu_seconds_total{mode=\\"user\\"}":"failed: OSError"}'


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ('"seq":40', '"seq":40,"from_a_later_version":{"a":[1]}', {}),
        (REASONS, ',"reasons":{}', {"reasons": {}}),
        (REASONS, "", {"reasons": {}}),
        ('"protocol_version":"fedmon/1"', '"protocol_version":"fedmon/1.4"', {"protocol_version": "fedmon/1.4"}),
    ],
)
def test_what_a_later_version_adds_is_ignored_and_reasons_may_be_left_out(
    old: str, new: str, changes: dict[str, Any]
) -> None:
    text = PLAIN.decode()
    assert old in text

    batch = codec.decode_telemetry(text.replace(old, new).encode())

    assert batch == msgspec.structs.replace(BATCH, **changes)


def test_a_payload_over_the_limit_is_refused() -> None:
    huge = PLAIN.replace(b'"stream":"host"', b'"stream":"' + b"x" * codec.MAX_PAYLOAD_BYTES + b'"')

    with pytest.raises(InvalidMessageError, match="over the limit"):
        codec.decode_telemetry(huge)


def test_a_request_with_arguments_nested_too_deeply_is_refused() -> None:
    envelope = {"researcher_id": "a", "id": "1", "session": "s", "sequence": 1, "expires": "2030-01-01T00:00:00Z"}
    run = {"command": "run", "protocol_version": "fedmon/1", "job_id": "j", "sha256": "0" * 64, **envelope}
    deepest: object = 'a "quoted" [bracket'
    for _ in range(codec.MAX_DEPTH - 2):
        deepest = [deepest]

    codec.decode_request(json.dumps({**run, "arguments": {"x": deepest}}).encode())
    too_deep = json.dumps({**run, "arguments": {"x": [deepest]}}).encode()
    with pytest.raises(InvalidMessageError, match="nested deeper than 32"):
        codec.decode_request(too_deep)
    assert codec.recover_envelope(too_deep)["id"] == "1"  # so that the refusal reaches who asked


def test_reports_of_a_job_are_scalars_and_samples_with_a_reason_for_each_null() -> None:
    told = [JobScalar(job_id="j", number=0, t=1.5, mono=2.0, seq=7, step=3, values={"loss": None}, dropped=4),
            JobScalar(job_id="j", number=1, t=1.5, mono=2.0, values={"loss": 0.5})]  # fmt: skip

    *scalars, unrecorded = RunScalars(node_id="a", researcher_id="r", boot=1, scalars=told).telemetry()

    batch, scalar = scalars
    assert isinstance(batch, Batch)
    series = {name: f'user_{name}{{name="loss",job="j"}}' for name in ("value", "step")}
    assert batch.columns == {series["value"]: [None], series["step"]: [3], "user_values_dropped_total": [4]}
    assert (batch.seq, batch.reasons) == (7, {series["value"]: "failed: not finite"})
    assert [isinstance(each, AddScalar) for each in (scalar, unrecorded)] == [True, True]
