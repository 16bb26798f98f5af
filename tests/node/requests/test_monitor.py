"""Samples are sent again in pages: in order, only what may leave, and with a clear word where there are none."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedmon.common.clock import seconds_from_now
from fedmon.common.metrics.sample import Batch
from fedmon.common.settings import PolicySettings
from fedmon.common.wire import codec
from fedmon.common.wire.messages import Error, ErrorCode, Monitor
from fedmon.common.wire.samples import SamplesReply
from fedmon.node.measure.leases import LeaseTable
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.measure.recorder import RECORDED, Recorder
from fedmon.node.requests.monitor import MonitorHandler
from fedmon.node.requests.policy import Policy
from tests.common.store.recordings import NODE, batch, flat, seqs
from tests.support.waiting import wait_until

DISK = 'host_disk_read_bytes_total{device="sda"}'


@dataclasses.dataclass
class Counted:
    """What was counted as having left."""

    metrics: dict[str, int] = dataclasses.field(default_factory=dict)

    def count(self, names: Iterable[str], n: int) -> None:
        for name in names:
            self.metrics[name] = self.metrics.get(name, 0) + n


@dataclasses.dataclass
class Node:
    """The parts of a node that a resend needs."""

    recorder: Recorder | None
    policy: Policy
    audit: Counted = dataclasses.field(default_factory=Counted)

    def ask(self, **fields: Any) -> SamplesReply | Error:
        """Ask as a researcher does, over the wire's bytes."""
        request = Monitor(
            action="resend",
            researcher_id="anna",
            instance="main",
            id="1",
            session="s",
            sequence=1,
            expires=seconds_from_now(10),
            **fields,
        )
        pipeline = SimpleNamespace(enabled=True, recorder=self.recorder)
        handler = MonitorHandler(cast("LeaseTable", None), cast("Pipeline", pipeline), self.policy, self.audit.count)
        payload = codec.encode(handler(request))
        reply = codec.decode_reply(payload)
        assert isinstance(reply, SamplesReply | Error)
        # The frame of the reply comes on top; only a sample that is larger by itself may take a whole message.
        assert len(payload) <= 66_000 or (isinstance(reply, SamplesReply) and len(received([reply])[0].t) == 1)
        return reply

    def pages(self, **fields: Any) -> list[SamplesReply]:
        """Follow the pages to the last."""
        found: list[SamplesReply] = []
        first: int | None = fields.pop("first_seq", None)
        while True:
            reply = self.ask(first_seq=first, **fields)
            assert isinstance(reply, SamplesReply)
            found.append(reply)
            if reply.next_seq is None:
                return found
            assert reply.next_seq > (first or 0)
            first = reply.next_seq


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    recorder = Recorder(tmp_path / "recording.sqlite", node_id=NODE)
    recorder.start()
    wait_until(lambda: recorder.ready)
    yield Node(recorder, allowing("*"))
    assert recorder.stop(5.0)


def allowing(*metrics: str) -> Policy:
    return Policy(PolicySettings(metrics=metrics), NODE)


def keep(node: Node, *batches: Batch) -> None:
    assert node.recorder is not None
    for one in batches:
        node.recorder.keep(one)


def wide(seq: int, series: int, length: int = 10) -> Batch:
    """Return samples whose numbers need many bytes each."""
    columns: dict[str, list[float | None]] = {
        f'user_loss{{layer="{number}"}}': [(seq + at + 1) / (number + 7) for at in range(length)]
        for number in range(series)
    }
    return Batch(
        node_id=NODE,
        boot=1,
        stream="host",
        seq=seq,
        t=[float(seq + at) for at in range(length)],
        mono=[float(seq + at) for at in range(length)],
        columns=columns,
    )


def received(pages: Iterable[SamplesReply]) -> list[Batch]:
    return [one for page in pages for one in page.as_batches()]


def test_pages_bring_every_sample_once_and_in_order(node: Node) -> None:
    keep(node, *(wide(first, 60) for first in range(0, 700, 10)))
    wait_until(lambda: node.recorder and node.recorder.counts()[RECORDED] == 700)
    keep(node, wide(700, 60, 3))

    pages = node.pages(boot=1)

    assert len(pages) > 3
    assert flat(received(pages)) == flat([*(wide(first, 60) for first in range(0, 700, 10)), wide(700, 60, 3)])
    assert {(page.boot, page.oldest_seq, page.last_seq) for page in pages} == {(1, 0, 702)}
    assert node.audit.metrics == {"user_loss": 703}


def test_a_part_is_sent_without_its_surroundings(node: Node) -> None:
    keep(node, *(batch(first) for first in range(0, 100, 10)))

    assert flat(received(node.pages(boot=1, first_seq=37, last_seq=52))) == flat([batch(37, 16)])
    assert seqs(received(node.pages(first_seq=95, last_seq=2**63 - 1))) == [95, 96, 97, 98, 99]


@pytest.mark.parametrize(
    ("since_t", "begins"), [(-1.0, 0), (37.5, 38), (99.0, 99), (100.5, 101), (103.0, None)], ids=str
)
def test_pages_begin_with_the_first_sample_that_is_not_older(node: Node, since_t: float, begins: int | None) -> None:
    keep(node, *(wide(first, 2) for first in range(0, 100, 10)))
    wait_until(lambda: node.recorder and node.recorder.counts()[RECORDED] == 100)
    keep(node, wide(100, 2, 3))

    pages = node.pages(boot=1, since_t=since_t)

    assert seqs(received(pages)) == ([] if begins is None else list(range(begins, 103)))


def test_without_a_boot_the_newest_is_sent(node: Node) -> None:
    keep(node, batch(0), batch(0, 4, boot=3), batch(0, 7, boot=2, stream="user"))

    (page,) = node.pages()
    (user,) = node.pages(stream="user")

    assert (page.boot, seqs(page.as_batches())) == (3, [0, 1, 2, 3])
    assert (user.boot, seqs(user.as_batches())) == (2, list(range(7)))


def test_only_what_the_owner_lets_leave_is_sent_and_counted(node: Node) -> None:
    node.policy = allowing("host_disk_*")
    keep(node, *(batch(first) for first in range(0, 50, 10)))
    hidden = Batch(node_id=NODE, boot=1, stream="host", seq=50, t=[1.0], mono=[1.0], columns={"gpu_count": [1]})
    failing = Batch(
        node_id=NODE,
        boot=1,
        stream="host",
        seq=51,
        t=[2.0],
        mono=[2.0],
        columns={DISK: [None], "gpu_count": [None]},
        reasons={DISK: "failed: gone", "gpu_count": "no permission: secret"},
    )
    keep(node, hidden, failing)

    found = received(node.pages(boot=1))

    assert seqs(found) == [*range(50), 51]
    assert {series for one in found for series in one.columns} == {DISK}
    assert found[-1].reasons == {DISK: "failed: gone"}
    assert node.audit.metrics == {"host_disk_read_bytes_total": 51}


def test_where_nothing_may_leave_the_pages_end_without_samples(node: Node) -> None:
    node.policy = allowing("gpu_*")
    keep(node, *(batch(first, 100) for first in range(0, 12_000, 100)))
    wait_until(lambda: node.recorder and node.recorder.counts()[RECORDED] == 12_000)

    pages = node.pages(boot=1)

    assert received(pages) == []
    assert 1 < len(pages) < 6
    assert node.audit.metrics == {}


def test_a_single_sample_as_large_as_a_message_goes_alone(node: Node) -> None:
    keep(node, wide(0, 10), wide(10, 1500, 2), wide(12, 10))

    pages = node.pages(boot=1)

    assert seqs(received(pages)) == list(range(22))


def test_one_page_costs_the_router_little(node: Node) -> None:
    keep(node, *(wide(first, 60) for first in range(0, 1300, 10)))
    wait_until(lambda: node.recorder and node.recorder.counts()[RECORDED] == 1300)
    node.ask(boot=1, first_seq=0)

    costs = []
    for first in range(0, 1000, 100):
        begun = time.thread_time()
        node.ask(boot=1, first_seq=first)
        costs.append(time.thread_time() - begun)

    assert sorted(costs)[len(costs) // 2] < 0.03


def test_a_node_without_a_recording_says_so() -> None:
    reply = Node(None, allowing("*")).ask()

    assert isinstance(reply, Error)
    assert (reply.code, "keeps no recording" in reply.reason) == (ErrorCode.UNSUPPORTED, True)


def test_a_recording_that_cannot_be_read_yet_is_asked_again_later(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "recording.sqlite", node_id=NODE)

    reply = Node(recorder, allowing("*")).ask(boot=1)

    assert isinstance(reply, Error)
    assert (reply.code, "try again later" in reply.reason) == (ErrorCode.BUSY, True)


def test_a_stream_that_does_not_exist_is_named_with_those_that_do(node: Node) -> None:
    keep(node, batch(0), batch(0, stream="user"))

    for fields in ({"stream": "job-7"}, {"stream": "job-7", "boot": 1}):
        reply = node.ask(**fields)
        assert isinstance(reply, Error)
        assert "no samples of stream 'job-7'; it keeps host, user" in reply.reason


def test_a_boot_of_which_nothing_is_left_gets_an_empty_page(node: Node) -> None:
    keep(node, batch(0, boot=5))

    reply = node.ask(boot=2, first_seq=3, last_seq=9)

    assert isinstance(reply, SamplesReply)
    assert (reply.boot, reply.batches, reply.next_seq, reply.oldest_seq, reply.last_seq) == (2, [], None, None, None)


def test_a_range_the_wrong_way_round_is_refused(node: Node) -> None:
    keep(node, batch(0))

    reply = node.ask(first_seq=9, last_seq=3)

    assert isinstance(reply, Error)
    assert (reply.code, "first comes after the last" in reply.reason) == (ErrorCode.MALFORMED, True)


def test_a_range_behind_the_end_gets_an_empty_page_with_what_there_is(node: Node) -> None:
    keep(node, batch(0))

    reply = node.ask(boot=1, first_seq=50, last_seq=60)

    assert isinstance(reply, SamplesReply)
    assert (reply.batches, reply.next_seq, reply.oldest_seq, reply.last_seq) == ([], None, 0, 9)
