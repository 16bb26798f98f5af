"""Samples are sent again in pages: in order, only what may leave, and with a clear word where there are none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.metrics.sample import Batch
from fedmon.common.settings.values import PolicySettings, RecordingSettings
from fedmon.common.wire import codec
from fedmon.common.wire.messages import Error, ErrorCode, Monitor
from fedmon.common.wire.samples import SamplesReply
from fedmon.node.measure.leases import LeaseTable
from fedmon.node.measure.recorder import RECORDED
from fedmon.node.requests.dialect import DeclinedError, error
from fedmon.node.requests.monitor import MonitorHandler
from fedmon.node.requests.policy import Policy
from tests.common.store.recordings import NODE, batch, flat, seqs
from tests.node.measure.pipelines import pipeline_of
from tests.support.envelopes import envelope
from tests.support.waiting import wait_until

DISK = 'host_disk_read_bytes_total{device="sda"}'


class Node:
    """The parts of a node that a resend needs; ``sent`` counts the metrics that left."""

    def __init__(self, folder: Path, *, records: bool = True) -> None:
        self.policy, self.sent = allowing("*"), Counter[str]()
        recording = RecordingSettings(enabled=records)
        self._pipeline = pipeline_of(folder / "recording.sqlite", id=NODE, recording=recording)
        self.recorder = self._pipeline.recorder

    def ask(self, **fields: Any) -> SamplesReply | Error:
        """Ask as a researcher does, over the wire's bytes."""
        request = Monitor(action="resend", **envelope("anna"), **fields)
        leases = LeaseTable(default_interval_s=1.0, min_interval_s=1.0)
        handler = MonitorHandler(leases, self._pipeline, self.policy, self._count)
        try:
            answer = handler(request)
        except DeclinedError as refusal:
            answer = error(request, NODE, refusal.code, str(refusal))
        payload = codec.encode(answer)
        reply = codec.decode_reply(payload)
        assert isinstance(reply, SamplesReply | Error)
        # The frame of the reply comes on top; only a sample that is larger by itself may take a whole message.
        assert len(payload) <= 66_000 or (isinstance(reply, SamplesReply) and len(received([reply])[0].t) == 1)
        return reply

    def _count(self, names: Iterable[str], samples: int) -> None:
        self.sent.update(dict.fromkeys(names, samples))

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
    node = Node(tmp_path)
    assert node.recorder is not None
    node.recorder.start()
    wait_until(lambda: node.recorder and node.recorder.ready)
    yield node
    assert node.recorder.stop(60.0)


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
    assert node.sent == {"user_loss": 703}


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
    assert node.sent == {"host_disk_read_bytes_total": 51}


def test_where_nothing_may_leave_the_pages_end_without_samples(node: Node) -> None:
    node.policy = allowing("gpu_*")
    keep(node, *(batch(first, 100) for first in range(0, 12_000, 100)))
    wait_until(lambda: node.recorder and node.recorder.counts()[RECORDED] == 12_000)

    pages = node.pages(boot=1)

    assert received(pages) == []
    assert 1 < len(pages) < 6
    assert node.sent == {}


def test_a_single_sample_as_large_as_a_message_goes_alone(node: Node) -> None:
    keep(node, wide(0, 10), wide(10, 1500), wide(20, 4000, 1), wide(21, 10, 1))

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


@pytest.mark.parametrize(
    ("recording", "fields", "code", "says"),
    [
        ("none", {}, ErrorCode.UNSUPPORTED, "keeps no recording (its owner switched that off)"),
        ("damaged", {"boot": 1}, ErrorCode.BUSY, "try again later"),
        ("not open", {"boot": 1}, ErrorCode.BUSY, "try again later"),
        ("kept", {"stream": "job-7"}, ErrorCode.FAILED, "no samples of stream 'job-7'; it keeps host, user"),
        ("kept", {"stream": "job-7", "boot": 1}, ErrorCode.FAILED, "no samples of stream 'job-7'; it keeps host, user"),
        ("kept", {"first_seq": 9, "last_seq": 3}, ErrorCode.MALFORMED, "first comes after the last"),
    ],
)
def test_samples_that_cannot_be_sent_are_refused_with_the_reason(
    recording: str, fields: dict[str, Any], code: ErrorCode, says: str, node: Node, tmp_path: Path
) -> None:
    keep(node, batch(0), batch(0, stream="user"))
    closed = Node(tmp_path / "other", records=recording != "none")
    if recording == "damaged":
        wait_until(lambda: node.recorder and node.recorder.counts()[RECORDED] == 20)
        for file in tmp_path.glob("recording.sqlite*"):
            with file.open("r+b") as open_file:  # cut, it would kill the recorder that has it in its memory
                open_file.write(b"\xff" * 100_000)

    reply = (closed if recording in ("none", "not open") else node).ask(**fields)

    assert isinstance(reply, Error)
    assert (reply.code, says in reply.reason) == (code, True)


@pytest.mark.parametrize(
    ("boot", "first_seq", "extent"), [(2, 3, (None, None)), (5, 50, (0, 9))], ids=["nothing is left", "behind the end"]
)
def test_a_range_of_which_there_is_nothing_gets_an_empty_page(
    boot: int, first_seq: int, extent: tuple[int | None, int | None], node: Node
) -> None:
    keep(node, batch(0, boot=5))

    reply = node.ask(boot=boot, first_seq=first_seq, last_seq=60)

    assert isinstance(reply, SamplesReply)
    assert (reply.boot, reply.batches, reply.next_seq) == (boot, [], None)
    assert (reply.oldest_seq, reply.last_seq) == extent
