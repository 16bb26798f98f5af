"""A store on the researcher's side: in order, without a hole, and going on where it ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from bench.echo_nodes import Message
from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.settings.values import ResearcherSettings
from fedmon.common.store.recording import Recording
from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.record import Record, RecordPosition
from fedmon.researcher.samples.resend import TOO_OLD
from tests.common.store.recordings import missing
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.recording_node import CPU, RecordingNode
from tests.support.waiting import elapse, wait_until


def stored(path: Path) -> list[tuple[str, int, int, float | None]]:
    """Return node, boot, number and CPU of what a store holds, in the order in which it is read."""
    with Recording(path, read_only=True) as recording:
        return [
            (batch.node_id, batch.boot, batch.seq + at, batch.columns[CPU][at])
            for batch in recording.read(stream="host")
            for at in range(len(batch.t))
        ]


def rows(*numbers: tuple[int, int]) -> list[tuple[str, int, int, float]]:
    return [("a", boot, seq, float(seq)) for boot, seq in numbers]


def test_a_new_store_begins_with_what_nodes_still_keep_and_goes_on(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    path = tmp_path / "store.fedmon"
    with RecordingNode(mosquitto.port, "a", page=3) as node:
        node.sample(3, live=False)
        node.restart()
        node.sample(5, live=False)
        with federate().record(path) as record:
            node.wait(lambda: node.leased)
            wait_until(lambda: record.counts.stored == 8)
            node.sample(2)
            wait_until(lambda: record.counts.stored == 10)
            counts, positions = record.counts, record.positions
            assert {request["live"] for request in node.sent("monitor") if request["action"] == "start"} == {False}

    assert stored(path) == rows((1, 0), (1, 1), (1, 2), *((2, seq) for seq in range(7)))
    assert (counts.late, counts.lost, counts.repeated, counts.pending, counts.nodes) == (8, 0, 0, 0, 1)
    assert counts.error == ""
    assert positions == {"a": {"host": RecordPosition(boot=2, seq=6, t=node.kept[2, "host"][6])}}


@pytest.mark.parametrize("knows_since", [True, False], ids=["a node finds the beginning", "an older node"])
def test_the_history_is_cut_at_the_time_asked_for(
    mosquitto: Broker, federate: Open, tmp_path: Path, knows_since: bool
) -> None:
    with RecordingNode(mosquitto.port, "a", page=50) as node:
        node.knows_since = knows_since
        started = time.monotonic()
        node.sample(300, live=False)  # one a second, the first of them 900 s ago
        with (
            federate().record(tmp_path / "some.fedmon", history_s=750.0) as some,
            federate(instance="other").record(tmp_path / "none.fedmon", history_s=0) as none,
        ):
            took_s = time.monotonic() - started
            node.wait(lambda: len(node.sent("monitor")) >= 2)
            wait_until(lambda: some.counts.stored > 0 and some.counts.pending == 0)
            node.sample(1)
            wait_until(lambda: none.counts.stored == 1)

    first = stored(tmp_path / "some.fedmon")[0][2]
    assert 145 <= first <= 151 + took_s
    assert [seq for _, _, seq, _ in stored(tmp_path / "some.fedmon")] == list(range(first, 301))
    assert [seq for _, _, seq, _ in stored(tmp_path / "none.fedmon")] == [300]
    assert (some.counts.lost, none.counts.lost) == (0, 0)
    of_some = [request for request in node.resends if request["instance"] == "main"]
    # Four pages of 50 hold what was asked for, from the first request on.
    assert (len(of_some) <= 4) is knows_since


def test_a_store_goes_on_where_it_ended_with_what_happened_meanwhile(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    path = tmp_path / "store.fedmon"
    with RecordingNode(mosquitto.port, "a", page=3) as node:
        federation = federate()
        with federation.record(path) as record:
            node.wait(lambda: node.leased)
            node.sample(4)
            wait_until(lambda: record.counts.stored == 4)
        node.sample(4)
        node.restart()
        node.sample(2, stream="job-1")
        node.sample(2)
        with federation.record(path, history_s=0) as again:
            wait_until(lambda: again.counts.stored == 8)
            node.sample(1)
            wait_until(lambda: again.counts.stored == 9)

    assert stored(path) == rows(*((1, seq) for seq in range(8)), *((2, seq) for seq in range(3)))
    with Recording(path, read_only=True) as recording:
        assert [(one.stream, one.boot, one.samples) for one in recording.extents()] == [
            ("host", 1, 8), ("host", 2, 3), ("job-1", 2, 2),
        ]  # fmt: skip
    assert (again.counts.lost, again.counts.repeated) == (0, 0)


def test_only_the_metrics_and_nodes_asked_for_are_stored_and_a_metric_that_never_came_is_told(
    mosquitto: Broker,
    federate: Open,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedmon.researcher.samples.consumers.UNMATCHED_AFTER_S", 1.0)
    path = tmp_path / "store.fedmon"
    with (
        RecordingNode(mosquitto.port, "a") as a,
        RecordingNode(mosquitto.port, "b") as b,
        federate().record(path, nodes=["a"], metrics=["wide_*", "wrong_*"]) as record,
    ):
        a.wait(lambda: a.leased)
        b.sample(1)
        a.sample(2, width=3)
        wait_until(lambda: record.counts.stored == 2)
        elapse(1.0)
        a.come_up()
        wait_until(lambda: caplog.records, what="a word of it while the record goes on")

    with Recording(path, read_only=True) as recording:
        assert [(batch.node_id, sorted(batch.columns)) for batch in recording.read()] == [("a", ["wide_0", "wide_1"])]
    assert [one.getMessage() for one in caplog.records] == ["none of 2 samples has a metric wrong_*"] * 2


def test_what_is_lost_is_written_down_with_its_reason(mosquitto: Broker, federate: Open, tmp_path: Path) -> None:
    path = tmp_path / "store.fedmon"
    with RecordingNode(mosquitto.port, "a") as node, federate().record(path) as record:
        node.wait(lambda: node.leased)
        node.sample(2)
        wait_until(lambda: record.counts.stored == 2)
        node.sample(5, live=False)
        node.forget(below=5)
        node.sample(1)
        wait_until(lambda: record.counts.stored == 5)
        counts = record.counts

    assert [seq for _, _, seq, _ in stored(path)] == [0, 1, 5, 6, 7]
    assert (counts.stored, counts.lost, counts.pending) == (5, 3, 0)
    assert repr(record) == f"<Record of {path}: 5 samples, 0 missing, 3 lost>"
    with Recording(path, read_only=True) as recording:
        (lost,) = recording.lost("a", 1, "host")
        assert (lost.first_seq, lost.last_seq, lost.reason) == (2, 4, TOO_OLD)
        assert missing(recording, 0, 7) == []


def test_what_a_node_says_of_itself_is_written_down(mosquitto: Broker, federate: Open, tmp_path: Path) -> None:
    hardware = {"model": "a machine", "cores": 4}

    class Described(RecordingNode):
        def _answer(self, request: Message) -> Any:
            reply = super()._answer(request)
            return reply | {"hardware": hardware} if request["command"] == "monitor" else reply

    with Described(mosquitto.port, "a") as node:
        node.sample(1, live=False)
        with federate().record(tmp_path / "store.fedmon") as record:
            wait_until(lambda: record.counts.stored == 1)

    with Recording(tmp_path / "store.fedmon", read_only=True) as recording:
        (description,) = recording.descriptions()
    assert (description.boot, description.document["hardware"]) == (1, hardware)
    assert description.document["metrics"] == [CPU]


def test_a_record_that_cannot_be_kept_is_refused_at_once(federate: Open, tmp_path: Path) -> None:
    federation = federate()

    with pytest.raises(StorageError, match=f"{tmp_path} is a folder: name a file in it"):
        federation.record(tmp_path)
    with pytest.raises(InvalidInputError, match="history_s is -1"):
        federation.record(tmp_path / "x", history_s=-1)
    with pytest.raises(InvalidInputError, match="neither a file nor a store is given"):
        federation.record()
    with federation.record(tmp_path / "x"), pytest.raises(ConflictError, match="is recorded already"):
        federation.record(tmp_path / "x")
    federation.record(tmp_path / "x").stop()
    for watching in (federation.monitor, lambda metrics: federation.record(tmp_path / "x", metrics=metrics)):
        with pytest.raises(InvalidInputError, match=r"metrics is 'host_load1': give a list of names, such as \['host_"):
            watching(metrics="host_load1")


def test_on_a_wire_that_numbers_no_samples_nothing_is_recorded(mosquitto: Broker, tmp_path: Path) -> None:
    settings = ResearcherSettings(id="r", broker=mosquitto.settings, folder=tmp_path / "r", wire="fedbiomed4")

    with Federation(settings=settings) as federation, pytest.raises(InvalidInputError, match="on this wire"):
        federation.record(tmp_path / "store")

    assert not (tmp_path / "store").exists()


def test_closing_the_federation_writes_the_record_to_its_end(mosquitto: Broker, federate: Open, tmp_path: Path) -> None:
    with RecordingNode(mosquitto.port, "a") as node:
        federation = federate()
        record: Record = federation.record(tmp_path / "store.fedmon")
        watch = federation.monitor()
        node.wait(lambda: [request for request in node.sent("monitor") if request["live"]])
        node.sample(7)
        wait_until(lambda: watch.delivered == 7 and record.counts.pending == 0)

        federation.close()

    assert record.closed
    assert len(stored(tmp_path / "store.fedmon")) == 7


@pytest.mark.parametrize("whole", [False, True], ids=["the record", "the federation, of a draining node"])
def test_a_record_ends_with_what_nodes_still_kept_together(
    mosquitto: Broker, federate: Open, tmp_path: Path, *, whole: bool
) -> None:
    federation, path = federate(), tmp_path / "store.fedmon"
    with RecordingNode(mosquitto.port, "a") as node:
        answer = node.answer

        def end_batch(request: Any) -> Any:
            if request.get("live"):
                node.sample(3)
            return answer(request)

        record = federation.record(path)
        node.wait(lambda: node.leased)
        node.sample(5)
        wait_until(lambda: record.counts.stored == 5)
        node.answer = end_batch
        if whole:
            node.say("draining")
            wait_until(lambda: federation.nodes()["a"].state.value == "draining")

        (federation if whole else record).close()

    assert len(stored(path)) == 8


def opens_its_recording(node: RecordingNode) -> None:
    """Have a node answer leases as one that still opens its recording."""
    node.answer = lambda request: (
        (node.honest(request) or {}) | {"reason": "its recording is being opened", "extents": []}
        if request["command"] == "monitor"
        else node.honest(request)
    )


@pytest.mark.parametrize("farewell_first", [False, True])
def test_samples_of_a_node_that_ends_before_its_recording_is_open_are_stored(
    mosquitto: Broker, federate: Open, tmp_path: Path, *, farewell_first: bool
) -> None:
    with RecordingNode(mosquitto.port, "a") as node:
        opens_its_recording(node)
        federation = federate()
        with federation.record(tmp_path / "store.fedmon") as record:
            node.wait(lambda: node.leased)
            if farewell_first:  # a farewell is urgent, and overtakes samples
                node.say("offline")
                wait_until(lambda: federation.nodes()["a"].state.value == "offline")
            node.sample(3)
            node.say("offline")
            wait_until(lambda: record.counts.stored == 3)


def test_a_node_that_opens_its_recording_is_asked_again_long_before_the_lease_is_renewed(
    mosquitto: Broker, federate: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.researcher.samples.consumers.RENEW_EVERY_S", 600.0)
    with RecordingNode(mosquitto.port, "a") as node:
        opened = node.answer
        opens_its_recording(node)
        node.sample(3, live=False)
        with federate().record(tmp_path / "store.fedmon") as record:
            node.wait(lambda: node.leased)
            node.answer = opened
            wait_until(lambda: record.counts.stored == 3)


def test_a_node_whose_owner_switches_the_recording_off_is_recorded_on_from_its_live_samples(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    with RecordingNode(mosquitto.port, "a") as node, federate().record(tmp_path / "store.fedmon") as record:
        node.wait(lambda: node.leased)
        node.sample(3)
        wait_until(lambda: record.counts.stored == 3)
        node.answer = node.honest
        node.restart()
        node.sample(3)
        wait_until(lambda: record.counts.stored == 6)
        counts = record.counts

    assert (counts.lost, counts.pending) == (0, 0)
    assert stored(tmp_path / "store.fedmon") == rows(*((boot, seq) for boot in (1, 2) for seq in range(3)))
