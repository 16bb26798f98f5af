"""Batches are numbered without gaps, small enough for a message, and hold only what may leave."""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import pytest

from fedmon.common.metrics.sample import Batch, Sample
from fedmon.common.wire import codec
from fedmon.node.measure.publisher import MAX_BYTES, Publisher


class Wire:
    """A publisher with a connection that can be cut, and what it kept, sent and counted."""

    def __init__(self, *, interval_s: float = 1.0, leaves: Any = lambda _name: True) -> None:
        self.payloads: list[bytes] = []
        self.kept: list[Batch] = []
        self.left: list[tuple[list[str], int]] = []
        self.is_connected = True
        self.publisher = Publisher(
            node_id="site-a",
            boot=7,
            send=self._send,
            leaves=leaves,
            interval_s=interval_s,
            keep=self.kept.append,
            on_sent=lambda names, samples: self.left.append((list(names), samples)),
        )

    def _send(self, payload: bytes) -> bool:
        if self.is_connected:
            self.payloads.append(payload)
        return self.is_connected

    def take(self, *samples: Sample, stream: str = "host") -> Publisher:
        for each in samples:
            self.publisher.publish(stream, each)
        return self.publisher

    @property
    def batches(self) -> list[Batch]:
        decoded = [codec.decode_telemetry(payload) for payload in self.payloads]
        assert all(isinstance(message, Batch) for message in decoded)
        return decoded  # type: ignore[return-value]

    @property
    def sent(self) -> list[tuple[int, int]]:
        """Number of the first sample and length of each batch."""
        return [(batch.seq, len(batch.t)) for batch in self.batches]


@pytest.fixture
def wire() -> Wire:
    return Wire()


def sample(
    number: int, *, interval_s: float = 1.0, reasons: dict[str, str] | None = None, **values: float | None
) -> Sample:
    return Sample(
        t=1_700_000_000.0 + number * interval_s,
        mono=100.0 + number * interval_s,
        values=dict(values) or {"host_load1": float(number)},
        reasons=reasons or {},
    )


def test_ten_samples_make_a_batch_of_columns(wire: Wire) -> None:
    publisher = wire.take(*map(sample, range(20)))

    first, second = wire.batches
    assert (first.node_id, first.boot, first.stream, first.seq, second.seq) == ("site-a", 7, "host", 0, 10)
    assert first.t == [1_700_000_000.0 + number for number in range(10)]
    assert first.mono == [100.0 + number for number in range(10)]
    assert first.columns == {"host_load1": [float(number) for number in range(10)]}
    assert (publisher.published, publisher.dropped, publisher.last_seq()) == (20, 0, 19)


@pytest.mark.parametrize(("interval_s", "expected"), [(1.0, 10), (2.0, 6), (9.0, 2), (30.0, 1)])
def test_a_batch_never_waits_for_a_sample_that_would_make_it_older_than_ten_seconds(
    interval_s: float, expected: int
) -> None:
    wire = Wire(interval_s=interval_s)

    wire.take(*(sample(number, interval_s=interval_s) for number in range(30)))

    assert {length for _, length in wire.sent} == {expected}


def test_a_live_lease_gets_each_sample_and_what_was_gathered_at_once(wire: Wire) -> None:
    wire.take(sample(0), sample(1)).set_pace(interval_s=1.0, live=True)
    gathered = wire.sent
    wire.take(sample(2), sample(3)).set_pace(interval_s=1.0, live=False)
    wire.take(sample(4))

    assert gathered == [(0, 2)]
    assert wire.sent == [(0, 2), (2, 1), (3, 1)]


def test_a_slower_pace_does_not_let_an_open_batch_grow_old(wire: Wire) -> None:
    wire.take(sample(0)).set_pace(interval_s=60.0, live=False)

    assert wire.sent == [(0, 1)]


def test_samples_that_cannot_be_sent_are_counted_and_their_numbers_are_missing(wire: Wire) -> None:
    for number in range(30):
        wire.is_connected = not 10 <= number < 25
        wire.take(sample(number))

    assert wire.sent == [(0, 10), (20, 10)]
    assert wire.publisher.counts() == {"agent_samples_published_total": 20, "agent_samples_dropped_total": 10}


def test_only_metrics_that_the_policy_lets_leave_are_sent_and_counted_for_the_audit() -> None:
    wire = Wire(leaves=lambda name: name == "host_cpu_seconds_total")
    cpu = {f'host_cpu_seconds_total{{mode="{mode}"}}': 1.0 for mode in ("user", "idle")}
    hidden = {"host_load1": "not found: /proc/loadavg"}

    for number in range(20):
        wire.is_connected = number < 10
        wire.take(Sample(t=1.0, mono=1.0, values={**cpu, "host_load1": None}, reasons=hidden))

    (batch,) = wire.batches
    assert batch.columns == {key: [1.0] * 10 for key in cpu}
    assert (batch.reasons, b"load" in wire.payloads[0]) == ({}, False)
    assert wire.left == [(["host_cpu_seconds_total"], 10)]

    wire.is_connected = True
    wire.publisher.set_leaves(lambda name: name == "host_load1")
    wire.take(sample(20)).flush()
    assert wire.batches[-1].columns == {"host_load1": [20.0]}


def test_everything_is_kept_also_without_a_connection_or_a_right_to_leave() -> None:
    wire = Wire(leaves=lambda _name: False)

    publisher = wire.take(*map(sample, range(25)))

    assert (wire.payloads, publisher.withheld, publisher.published, publisher.dropped) == ([], 20, 0, 0)
    assert sum(len(batch.t) for batch in wire.kept) + publisher.open_samples == publisher.taken == 25


def test_a_missed_reading_is_null_with_its_reason_and_an_absent_series_null_without(wire: Wire) -> None:
    wire.take(
        sample(0, a=1.0),
        sample(1, a=math.nan, b=2.0),
        sample(2, b=math.inf),
        sample(3, b=None, reasons={"b": "failed: gone"}),
        sample(4, a=2.0),  # b is not due
    ).flush()

    batch, missed, later = wire.batches
    assert batch.columns == {"a": [1.0, None, None], "b": [None, 2.0, None]}
    assert (batch.reasons, missed.columns, missed.reasons) == ({}, {"b": [None]}, {"b": "failed: gone"})
    assert (later.columns, later.reasons) == ({"a": [2.0]}, {})


def test_each_stream_has_its_own_numbers_and_batches() -> None:
    wire = Wire(leaves=lambda name: name != "secret")
    wire.take(*(sample(number, host_load1=1.0, secret=2.0) for number in range(3)))
    publisher = wire.take(sample(0, a=1.0), stream="job-1")

    publisher.flush("job-1")
    publisher.flush()

    assert [(batch.stream, batch.seq, len(batch.t)) for batch in wire.kept] == [("job-1", 0, 1), ("host", 0, 3)]
    assert [(batch.stream, sorted(batch.columns)) for batch in wire.batches] == [
        ("job-1", ["a"]),
        ("host", ["host_load1"]),
    ]
    assert sorted(wire.kept[1].columns) == ["host_load1", "secret"]
    assert (publisher.taken, publisher.open_samples, publisher.last_seq("user")) == (4, 0, None)


@pytest.mark.parametrize(("number", "moments"), [(0, [109.0, 110.0]), (3600, [101.0])], ids=["silent", "future"])
def test_a_stream_that_fell_silent_does_not_keep_its_batch_open(wire: Wire, number: int, moments: list[float]) -> None:
    publisher = wire.take(sample(number, user_value=1.0), stream="user")

    sent = []
    for mono in moments:
        publisher.close_older(mono)
        sent.append(len(wire.payloads))

    assert sent == [0, 1][-len(moments) :]


@pytest.mark.parametrize(("series", "letter"), [(60, "x"), (500, "x"), (1200, "x"), (60, "\x01")])
def test_a_message_stays_below_its_size_with_many_series_and_long_reasons(wire: Wire, series: int, letter: str) -> None:
    chance = random.Random(series)
    names = [f'host_disk_read_bytes_total{{device="disk{number:03d}"}}' for number in range(series)]
    why = dict.fromkeys(names[:200], "failed: " + letter * 20)

    for number in range(10):
        values: dict[str, float | None] = {name: chance.random() * 1e-7 for name in names} | dict.fromkeys(why)
        wire.take(Sample(t=float(number), mono=float(number), values=values, reasons=why))
    wire.publisher.flush()

    assert max(map(len, wire.payloads)) <= (MAX_BYTES if series < 1000 else codec.MAX_PAYLOAD_BYTES)
    assert [seq for seq, length in wire.sent for seq in range(seq, seq + length)] == list(range(10))
    assert all(set(batch.columns) == set(names) for batch in wire.batches)


def test_a_sample_that_no_message_can_hold_goes_with_all_other_metrics_and_the_series_that_fit(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    huge: dict[str, float | None] = {f'host_disk_reads_total{{device="{number:0500d}"}}': 1.0 for number in range(300)}

    rest: dict[str, float | None] = {"host_cpu_busy_ratio": 0.5, 'node_energy_joules_total{method="psys"}': 7.0}

    wire.take(Sample(t=1.0, mono=1.0, values=huge | rest), Sample(t=2.0, mono=2.0, values=huge | rest)).flush()

    first = wire.batches[0]
    assert wire.sent == [(0, 1), (1, 1)]
    assert list(first.columns) == [*rest, *list(huge)[: len(first.columns) - 2]]
    assert len(wire.payloads[0]) > 0.8 * codec.MAX_PAYLOAD_BYTES
    assert wire.publisher.dropped == 0
    assert caplog.text.count(f"goes without {302 - len(first.columns)} series") == 1


def test_counters_beyond_the_exact_range_of_floats_are_sent_as_read(wire: Wire) -> None:
    wire.take(sample(0, host_network_receive_bytes_total=2**60 + 1)).flush()

    assert b"[1152921504606846977]" in wire.payloads[0]


def test_sampler_and_router_may_use_it_at_once(wire: Wire) -> None:
    def change_pace() -> None:
        for number in range(500):
            wire.publisher.set_pace(interval_s=1.0, live=number % 2 == 0)

    router = threading.Thread(target=change_pace, name="router")
    router.start()
    wire.take(*map(sample, range(2000)))
    router.join()
    wire.publisher.flush()

    assert [number for seq, length in wire.sent for number in range(seq, seq + length)] == list(range(2000))
