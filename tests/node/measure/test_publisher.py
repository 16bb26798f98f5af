from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

import pytest

from fedmon.common.metrics.sample import Batch, Sample
from fedmon.common.wire import codec
from fedmon.common.wire.samples import SampleBatch
from fedmon.node.measure.publisher import MAX_BYTES, Publisher


class Wire:
    """Takes payloads like a connection that can be cut."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.connected = True

    def __call__(self, payload: bytes) -> bool:
        if self.connected:
            self.payloads.append(payload)
        return self.connected

    @property
    def batches(self) -> list[SampleBatch]:
        decoded = [codec.decode_telemetry(payload) for payload in self.payloads]
        assert all(isinstance(message, SampleBatch) for message in decoded)
        return decoded  # type: ignore[return-value]


def everything(_name: str) -> bool:
    return True


def publisher(
    wire: Callable[[bytes], bool],
    *,
    interval_s: float = 1.0,
    leaves: Callable[[str], bool] = everything,
) -> Publisher:
    return Publisher(node_id="site-a", boot=7, send=wire, leaves=leaves, interval_s=interval_s)


def sample(
    number: int, *, interval_s: float = 1.0, reasons: dict[str, str] | None = None, **values: float | None
) -> Sample:
    return Sample(
        t=1_700_000_000.0 + number * interval_s,
        mono=100.0 + number * interval_s,
        values=dict(values) or {"host_load1": float(number)},
        reasons=reasons or {},
    )


def test_ten_samples_make_a_batch_of_columns() -> None:
    wire = Wire()
    stream = publisher(wire)

    for number in range(20):
        stream.publish("host", sample(number))

    first, second = wire.batches
    assert (first.node_id, first.boot, first.stream, first.seq) == ("site-a", 7, "host", 0)
    assert first.t == [1_700_000_000.0 + number for number in range(10)]
    assert first.mono == [100.0 + number for number in range(10)]
    assert first.m == {"host_load1": [float(number) for number in range(10)]}
    assert second.seq == 10
    assert (stream.published, stream.batches, stream.dropped, stream.last_seq()) == (20, 2, 0, 19)


@pytest.mark.parametrize(
    ("interval_s", "expected"), [(0.2, 10), (1.0, 10), (2.0, 6), (5.0, 3), (9.0, 2), (30.0, 1), (3600.0, 1)]
)
def test_a_batch_never_waits_for_a_sample_that_would_make_it_older_than_ten_seconds(
    interval_s: float, expected: int
) -> None:
    wire = Wire()
    stream = publisher(wire, interval_s=interval_s)

    for number in range(30):
        stream.publish("host", sample(number, interval_s=interval_s))

    assert {len(batch.t) for batch in wire.batches} == {expected}


def test_a_live_lease_gets_each_sample_and_what_was_gathered_at_once() -> None:
    wire = Wire()
    stream = publisher(wire)
    stream.publish("host", sample(0))
    stream.publish("host", sample(1))

    stream.set_pace(interval_s=1.0, live=True)
    gathered = [len(batch.t) for batch in wire.batches]
    stream.publish("host", sample(2))
    stream.publish("host", sample(3))
    stream.set_pace(interval_s=1.0, live=False)
    stream.publish("host", sample(4))

    assert gathered == [2]
    assert [(batch.seq, len(batch.t)) for batch in wire.batches] == [(0, 2), (2, 1), (3, 1)]


def test_a_slower_pace_does_not_let_an_open_batch_grow_old() -> None:
    wire = Wire()
    stream = publisher(wire)
    stream.publish("host", sample(0))

    stream.set_pace(interval_s=60.0, live=False)

    assert [(batch.seq, len(batch.t)) for batch in wire.batches] == [(0, 1)]


def test_what_cannot_be_sent_is_counted_and_its_numbers_are_missing() -> None:
    wire = Wire()
    stream = publisher(wire)
    for number in range(10):
        stream.publish("host", sample(number))
    wire.connected = False
    for number in range(10, 25):
        stream.publish("host", sample(number))
    wire.connected = True
    for number in range(25, 30):
        stream.publish("host", sample(number))

    assert [batch.seq for batch in wire.batches] == [0, 20]
    assert stream.counts() == {"agent_samples_published_total": 20, "agent_samples_dropped_total": 10}


def test_only_metrics_that_the_policy_lets_leave_are_sent() -> None:
    wire = Wire()
    stream = publisher(wire, leaves=lambda name: name == "host_cpu_seconds_total")
    values = {'host_cpu_seconds_total{mode="user"}': 1.0, "host_load1": None}

    stream.publish("host", Sample(t=1.0, mono=1.0, values=values, reasons={"host_load1": "not found: /proc/loadavg"}))
    stream.flush()

    assert wire.batches[0].m == {'host_cpu_seconds_total{mode="user"}': [1.0]}
    assert wire.batches[0].reasons == {}
    assert b"load" not in wire.payloads[0]


def test_when_nothing_may_leave_nothing_is_sent_and_it_is_counted() -> None:
    wire = Wire()
    stream = publisher(wire, leaves=lambda _name: False)

    for number in range(10):
        stream.publish("host", sample(number))

    assert wire.payloads == []
    assert (stream.withheld, stream.published, stream.dropped) == (10, 0, 0)


def test_who_keeps_the_audit_hears_which_metrics_left_and_how_often() -> None:
    wire = Wire()
    left: list[tuple[list[str], int]] = []
    stream = Publisher(
        node_id="site-a",
        boot=7,
        send=wire,
        leaves=lambda name: name != "host_load1",
        interval_s=1.0,
        on_sent=lambda names, samples: left.append((list(names), samples)),
    )
    values = dict.fromkeys(('host_cpu_seconds_total{mode="user"}', 'host_cpu_seconds_total{mode="idle"}'), 1.0)
    for number in range(10):
        stream.publish("host", Sample(t=float(number), mono=float(number), values={**values, "host_load1": 1.0}))
    wire.connected = False
    for number in range(10, 20):
        stream.publish("host", Sample(t=float(number), mono=float(number), values={**values, "host_load1": 1.0}))

    assert left == [(["host_cpu_seconds_total"], 10)]


def test_another_policy_holds_from_the_next_batch_on() -> None:
    wire = Wire()
    stream = publisher(wire)
    stream.publish("host", sample(0, host_load1=1.0, host_load5=2.0))
    stream.set_leaves(lambda name: name == "host_load5")
    stream.flush()

    assert wire.batches[0].m == {"host_load5": [2.0]}


def test_a_missed_reading_is_null_and_its_reason_travels_with_it() -> None:
    wire = Wire()
    stream = publisher(wire)

    stream.publish("host", sample(0, host_load1=0.5))
    stream.publish("host", sample(1, host_load1=None, reasons={"host_load1": "failed: OSError"}))
    stream.publish("host", sample(2, host_load1=0.7))
    stream.flush()

    assert wire.batches[0].m == {"host_load1": [0.5, None, 0.7]}
    assert wire.batches[0].reasons == {"host_load1": "failed: OSError"}


def test_a_series_that_a_sample_lacks_is_null_there_without_a_reason() -> None:
    wire = Wire()
    stream = publisher(wire)

    stream.publish("host", sample(0, a=1.0))
    stream.publish("host", sample(1, a=1.0, b=2.0))
    stream.publish("host", sample(2, b=3.0))
    stream.publish("host", sample(3, b=None, reasons={"b": "failed: gone"}))
    stream.flush()

    (batch,) = wire.batches
    assert batch.m == {"a": [1.0, 1.0, None, None], "b": [None, 2.0, 3.0, None]}
    assert batch.reasons == {"b": "failed: gone"}


def test_each_stream_has_its_own_numbers_and_batches() -> None:
    wire = Wire()
    kept: list[Batch] = []
    publisher = Publisher(
        node_id="site-a", boot=7, send=wire, leaves=lambda name: name != "secret", interval_s=1.0, keep=kept.append
    )
    for number in range(3):
        publisher.publish("host", sample(number, host_load1=1.0, secret=2.0))
    publisher.publish("job-1", sample(0, a=1.0))

    publisher.flush("job-1")
    publisher.flush()

    assert [(batch.stream, batch.seq, len(batch.t)) for batch in kept] == [("job-1", 0, 1), ("host", 0, 3)]
    assert [(batch.stream, batch.seq, sorted(batch.m)) for batch in wire.batches] == [
        ("job-1", 0, ["a"]),
        ("host", 0, ["host_load1"]),
    ]
    assert sorted(kept[1].columns) == ["host_load1", "secret"]
    assert (publisher.taken, publisher.open_samples, publisher.last_seq("user")) == (4, 0, None)


def test_everything_is_kept_also_what_cannot_be_sent_and_what_may_not_leave() -> None:
    kept: list[Batch] = []
    stream = Publisher(
        node_id="a", boot=7, send=lambda _: False, leaves=lambda _: False, interval_s=1.0, keep=kept.append
    )

    for number in range(25):
        stream.publish("host", sample(number))

    assert sum(len(batch.t) for batch in kept) + stream.open_samples == stream.taken == 25


def test_a_stream_that_fell_silent_does_not_keep_its_batch_open() -> None:
    wire = Wire()
    stream = publisher(wire)
    stream.publish("user", sample(0, user_value=1.0))

    stream.close_older(109.0)
    early = len(wire.batches)
    stream.close_older(110.0)

    assert (early, len(wire.batches)) == (0, 1)


def test_a_sample_of_a_moment_to_come_is_not_kept_back_until_then() -> None:
    wire = Wire()
    stream = publisher(wire)
    stream.publish("user", sample(3600, user_value=1.0))

    stream.close_older(101.0)

    assert len(wire.batches) == 1


@pytest.mark.parametrize("series", [1, 60, 500, 1000])
def test_a_batch_stays_below_its_size_with_many_series(series: int) -> None:
    wire = Wire()
    stream = publisher(wire)
    chance = random.Random(series)
    values = {f'host_disk_read_bytes_total{{device="disk{number:03d}"}}': 0.0 for number in range(series)}

    for number in range(10):
        row: dict[str, float | None] = {key: chance.random() * 1e-7 for key in values}
        stream.publish("host", Sample(t=float(number), mono=float(number), values=row))
    stream.flush()

    assert max(map(len, wire.payloads)) <= MAX_BYTES + 200 + 80 * series * (series > 800)
    assert sum(len(batch.t) for batch in wire.batches) == 10
    assert [batch.seq for batch in wire.batches] == [
        sum(len(batch.t) for batch in wire.batches[:index]) for index in range(len(wire.batches))
    ]


def test_a_sample_that_no_message_can_hold_goes_with_the_series_that_fit(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    stream = publisher(wire)
    huge: dict[str, float | None] = {f'host_disk_reads_total{{device="{number:0500d}"}}': 1.0 for number in range(300)}

    stream.publish("host", Sample(t=1.0, mono=1.0, values=huge))
    stream.publish("host", sample(1))
    stream.flush()

    assert [batch.seq for batch in wire.batches] == [0, 1]
    assert list(wire.batches[0].m) == list(huge)[: len(wire.batches[0].m)]
    assert 100 < len(wire.batches[0].m) < 300
    assert stream.dropped == 0
    assert f"goes without {300 - len(wire.batches[0].m)} series" in caplog.text


def test_reasons_that_would_not_fit_are_no_way_around_the_limit() -> None:
    wire = Wire()
    stream = publisher(wire)
    reasons = {f"metric_{number}": "failed: " + "x" * 190 for number in range(100)}

    for number in range(10):
        values: dict[str, float | None] = dict.fromkeys(reasons)
        stream.publish("host", Sample(t=float(number), mono=float(number), values=values, reasons=reasons))
    stream.flush()

    assert max(map(len, wire.payloads)) <= MAX_BYTES
    assert sum(len(batch.t) for batch in wire.batches) == 10


def test_numbers_that_json_does_not_have_become_null() -> None:
    wire = Wire()
    stream = publisher(wire)

    stream.publish("host", sample(0, a=math.nan, b=math.inf, c=1.0))
    stream.flush()

    assert wire.batches[0].m == {"a": [None], "b": [None], "c": [1.0]}


def test_counters_beyond_the_exact_range_of_floats_are_sent_as_read() -> None:
    wire = Wire()
    stream = publisher(wire)

    stream.publish("host", sample(0, host_network_receive_bytes_total=2**60 + 1))
    stream.flush()

    assert b"[1152921504606846977]" in wire.payloads[0]


def test_sampler_and_router_may_use_it_at_once() -> None:
    wire = Wire()
    stream = publisher(wire)

    def change_pace() -> None:
        for number in range(500):
            stream.set_pace(interval_s=1.0, live=number % 2 == 0)

    router = threading.Thread(target=change_pace, name="router")
    router.start()
    for number in range(2000):
        stream.publish("host", sample(number))
    router.join()
    stream.flush()

    numbers = [batch.seq + offset for batch in wire.batches for offset in range(len(batch.t))]
    assert numbers == list(range(2000))
