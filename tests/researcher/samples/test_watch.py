"""Watching live metrics: every sample delivered or counted, leases kept while somebody watches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from bench.echo_nodes import Message
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import NEVER_HEARD
from fedmon.researcher.samples.consumers import LEASE_S
from fedmon.researcher.samples.watch import HELD_SAMPLES, LiveSample
from tests.researcher.conftest import Open
from tests.researcher.replies.test_decisions import decide
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode, log_record, sample
from tests.support.waiting import stays, wait_until

CPU, DISK = "host_cpu_busy_ratio", 'host_disk_read_bytes_total{device="sda"}'


def batch(seq: int, length: int = 2, *, node_id: str = "a", boot: int = 1, stream: str = "host") -> Message:
    times = [float(seq + number) for number in range(length)]
    columns: dict[str, list[float | None]] = {CPU: [value / 100 for value in times], DISK: [None, *times[1:]]}
    return sample(node_id, seq, times, columns, boot=boot, stream=stream)


def send(node: EchoNode, message: Message) -> None:
    node.publish(f"general/monitoring/{node.node_id}", message)


def leases(node: EchoNode) -> list[tuple[str, float | None]]:
    return [(request["action"], request["interval_s"]) for request in node.sent("monitor")]


def numbers(samples: list[LiveSample]) -> list[int]:
    return [sample.seq for sample in samples]


def test_a_null_with_a_reason_is_shown_with_it_and_one_without_was_not_due(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a") as node, federate().monitor() as watch:
        node.wait(lambda: leases(node))

        send(node, batch(0) | {"m": {CPU: [None, 0.5], DISK: [None, 1.0]}, "reasons": {CPU: "failed: no such file"}})
        first, second = islice(watch, 2)

    assert (first.values, first.reasons) == ({CPU: None}, {CPU: "failed: no such file"})
    assert (second.values, second.reasons) == ({CPU: 0.5, DISK: 1.0}, {})


def test_a_watch_without_callback_is_iterated_and_ends_when_it_is_closed(node: EchoNode, federate: Open) -> None:
    watch = federate().monitor()
    node.wait(lambda: leases(node))
    send(node, batch(0, 5))

    first = list(islice(watch, 3))
    rest: list[LiveSample] = []
    reader = threading.Thread(target=lambda: rest.extend(watch))
    reader.start()
    wait_until(lambda: len(rest) == 2)
    watch.close()
    reader.join(60)

    assert numbers(first) == [0, 1, 2]
    assert numbers(rest) == [3, 4]
    assert not reader.is_alive()
    assert watch.next(timeout_s=0) is None


def test_a_node_is_called_unknown_only_by_a_settled_roster(tmp_path: Path) -> None:
    broker = Broker("mosquitto", tmp_path)
    with broker.researcher(tmp_path, "alice") as fed, fed.monitor(nodes=["b"]) as watch:
        wait_until(lambda: watch.refusals == {"b": NEVER_HEARD}, what="the node that is not known")

        broker.stop()

        assert wait_until(lambda: watch.refusals == {}, what="a roster that may lack nodes")


def test_the_answers_of_nodes_can_be_iterated_over_while_others_come(mosquitto: Broker, federate: Open) -> None:
    with ExitStack() as nodes, federate().monitor() as watch:

        def come(name: str) -> None:
            refusing = EchoNode(mosquitto.port, f"{name}-refuses")
            refusing.refuse()
            nodes.enter_context(refusing)
            nodes.enter_context(EchoNode(mosquitto.port, name))

        # given the answers of two nodes, of which the caller has seen none yet
        come("a")
        wait_until(lambda: watch.capabilities and watch.refusals, what="the first answers")
        measured, refused = iter(watch.capabilities), iter(watch.refusals)

        # when two more answer
        come("b")
        wait_until(lambda: len(watch.capabilities) == len(watch.refusals) == 2, what="the answers of all")

        # then it sees the first ones
        assert (list(measured), list(refused)) == (["a"], ["a-refuses"])


def test_only_the_metrics_asked_for_are_shown_and_one_that_never_came_is_told(
    node: EchoNode, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    bracketed = 'host_filesystem_size_bytes{mountpoint="/data[1]"}'
    federation = federate()
    by_name, by_series = federation.monitor(metrics=["host_disk_*"]), federation.monitor(metrics=[CPU])
    by_label = federation.monitor(metrics=[bracketed])
    none = federation.monitor(metrics=["gpu_*"])
    node.wait(lambda: leases(node))

    send(node, batch(0) | {"m": {CPU: [0.1, 0.2], DISK: [1.0, 2.0], bracketed: [3.0, 4.0]}})

    shown = [list(watch.next(30).values) for watch in (by_name, by_series, by_label, none)]  # type: ignore[union-attr] # there is one
    assert shown == [[DISK], [CPU], [bracketed], []]
    for watch in (by_name, by_series, by_label, none):
        watch.close()
    assert [one.getMessage() for one in caplog.records] == ["none of 2 samples has a metric gpu_*"]


def test_every_sample_is_delivered_or_counted_as_lost_by_node_boot_and_stream(node: EchoNode, federate: Open) -> None:
    told = threading.Event()
    # Until all is sent the node says nothing about what it does not keep.
    node.answer = lambda request: (
        None if request.get("action") == "resend" and not told.is_set() else node.honest(request)
    )
    watch = federate().monitor()
    node.wait(lambda: leases(node))

    for message in (
        batch(0),
        batch(10),
        batch(4),
        batch(4),
        batch(0, boot=2),
        batch(5, boot=2),
        batch(3, stream="job-1"),
    ):
        send(node, message)
    taken = list(islice(watch, 12))
    pending = watch.pending
    told.set()
    node.boot += 1
    node.say("online")
    wait_until(lambda: watch.pending == 0)

    assert numbers(taken) == [0, 1, 10, 11, 4, 5, 0, 1, 5, 6, 3, 4]
    assert [sample.seq for sample in taken if sample.late] == [4, 5]
    assert pending == 6 + 3
    assert (watch.delivered, watch.lost, watch.repeated) == (12, 6 + 3, 2)
    assert repr(watch) == "<Watch: 12 samples, 0 missing, 9 lost>"
    assert watch.losses == {"this node keeps no recording": 9}


def test_a_watch_of_one_node_gets_and_asks_that_node_alone(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a") as a, EchoNode(mosquitto.port, "b") as b:
        federation = federate()
        watch = federation.monitor(nodes=["a"], interval_s=0.5)
        a.wait(lambda: leases(a))

        send(b, batch(0, node_id="b"))
        send(a, batch(7, 1))
        b.publish("general/monitoring", batch(0, node_id="b"))
        a.publish("general/monitoring", batch(8, 1))
        taken = list(islice(watch, 2))

        asked_b = leases(b)
        with federation.monitor(nodes=["b"]) as other:
            wait_until(lambda: watch.capabilities and other.capabilities)

    assert [(sample.node_id, sample.seq) for sample in taken] == [("a", 7), ("a", 8)]
    assert leases(a)[0] == ("start", 0.5)
    assert asked_b == []
    assert (list(watch.capabilities), list(other.capabilities)) == (["a"], ["b"])


def test_the_lease_is_the_smallest_wish_and_is_given_back_when_nobody_watches(node: EchoNode, federate: Open) -> None:
    federation = federate()
    slow = federation.monitor(interval_s=10)
    node.wait(lambda: leases(node)[-1:] == [("start", 10)])
    fast = federation.monitor(interval_s=1)
    node.wait(lambda: leases(node)[-1] == ("start", 1))
    wait_until(lambda: "a" in fast.capabilities)
    fast.close()
    fast.close()
    node.wait(lambda: leases(node)[-1] == ("start", 10))
    slow.close()
    node.wait(lambda: leases(node)[-1] == ("stop", None))

    assert fast.capabilities["a"].metrics == [CPU]  # type: ignore[index] # a NodeId is a text
    assert all(request["lease_s"] == LEASE_S for request in node.sent("monitor") if request["action"] == "start")


def test_closing_the_federation_ends_every_watch_and_gives_the_lease_back(node: EchoNode, federate: Open) -> None:
    federation = federate()
    watch = federation.monitor()
    reader = threading.Thread(target=lambda: list(watch))
    reader.start()
    node.wait(lambda: leases(node))

    federation.close()
    reader.join(60)

    assert not reader.is_alive()
    node.wait(lambda: leases(node)[-1] == ("stop", None))


def test_a_node_that_comes_up_later_is_asked_for_its_lease_of_one_sample_an_hour_at_least(
    mosquitto: Broker, federate: Open
) -> None:
    watch = federate().monitor(interval_s=86_400)
    with EchoNode(mosquitto.port, "late") as node:
        node.wait(lambda: ("start", 3600) in leases(node))
        wait_until(lambda: "late" in watch.capabilities)


def test_a_shell_verb_is_not_flooded_with_metrics_that_nobody_wants(node: EchoNode, federate: Open) -> None:
    federation = federate()
    watch = federation.monitor()
    node.wait(lambda: leases(node))
    send(node, batch(0))
    assert watch.next(30)
    watch.close()
    telemetry: list[Any] = []

    send(node, batch(2))
    federation.ping()
    federation.on("telemetry", telemetry.append)
    wait_until(lambda: not telemetry and federation.ping().ok)
    send(node, batch(4))
    wait_until(lambda: telemetry)

    assert [(one.seq, one.m is one.columns) for one in telemetry] == [(4, True)]


def test_the_flat_topic_is_read_unless_identity_is_strict(node: EchoNode, federate: Open) -> None:
    trusting = federate()
    settings = trusting.settings
    strict = federate(settings=msgspec.structs.replace(settings, strict_identity=True), instance="strict")
    watches = [trusting.monitor(), strict.monitor()]
    node.wait(lambda: {one["instance"] for one in node.sent("monitor")} == {"main", "strict"})

    node.publish("general/monitoring", batch(0))
    node.publish("general/monitoring/a", batch(2))
    taken = [list(islice(watch, count)) for watch, count in zip(watches, (4, 2), strict=True)]

    assert [numbers(samples) for samples in taken] == [[0, 1, 2, 3], [2, 3]]
    assert strict.status().counters["messages without a sender in their topic"] == 1


def test_batches_that_are_wrong_are_counted_and_the_next_right_one_is_served(
    node: EchoNode, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate()
    watch = federation.monitor()
    node.wait(lambda: leases(node))

    send(node, batch(0, node_id="b"))
    send(node, batch(0) | {"t": [1.0]})
    send(node, batch(100, 0) | {"m": {}})
    node.publish("general/monitoring/a/b", batch(0))
    node.publish("general/monitoring/a", b'{"m": NaN}')
    node.publish("general/monitoring/a", b"")
    node.publish("general/monitoring/a", batch(0), retain=True)
    send(node, batch(8))
    taken = list(islice(watch, 4))

    assert numbers(taken) == [0, 1, 8, 9]
    assert watch.pending + watch.lost == 6
    # On a busy machine a lease may be asked for again before it is answered.
    late = "late answers that no caller waits for"
    assert {kind: count for kind, count in federation.status().counters.items() if kind != late} == {
        "messages naming another sender": 1,
        "messages on a foreign topic": 1,
        "unreadable messages (metrics)": 3,
    }


def test_what_a_slow_callback_has_no_room_for_is_pending_and_no_request_is_delayed(
    node: EchoNode, federate: Open
) -> None:
    gate = threading.Event()
    taken: list[int] = []

    def slow(sample: LiveSample) -> None:
        gate.wait(60)
        taken.append(sample.seq)

    federation = federate()
    watch = federation.monitor(slow)
    with pytest.raises(TypeError, match="has a callback"):
        watch.next()
    node.wait(lambda: leases(node))
    wide = batch(0, 10)
    wide["m"] = {f"metric_{number}": [1.25] * 10 for number in range(1000)}
    count = 320
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    for number in range(count):
        node.publish("general/monitoring/a", wide | {"seq": number * 10}, qos=0)
    wait_until(lambda: watch.delivered + watch.pending == 10 * count)
    pending, grown_bytes = watch.pending, process.memory_info().rss - before_bytes
    started = time.monotonic()
    assert federation.ping().ok
    took_s = time.monotonic() - started
    gate.set()
    wait_until(lambda: watch.pending == 0 and len(taken) == watch.delivered)

    assert pending > 0
    assert grown_bytes < 50e6
    assert taken == sorted(taken)
    assert took_s < 5.0
    assert watch.delivered + watch.lost == 10 * count


def test_a_callback_that_is_stuck_delays_no_other_subscription_and_not_the_end(node: EchoNode, federate: Open) -> None:
    gate, stuck = threading.Event(), set()
    told: dict[str, list[Any]] = {"samples": [], "presence": [], "telemetry": [], "decision": [], "log": []}

    def hang(name: str) -> Callable[[object], None]:
        def hanging(_told: object) -> None:
            stuck.add(name)
            gate.wait(60)

        return hanging

    federation = federate()
    for event in ("presence", "telemetry", "decision"):
        federation.on(event, hang(event))
        federation.on(event, told[event].append)
    federation.monitor(hang("samples"))
    federation.monitor(told["samples"].append)
    federation.logs(hang("log"), level="INFO")
    federation.logs(told["log"].append, level="INFO")
    node.wait(lambda: leases(node))

    for number in range(3):
        send(node, batch(number, 1))
        decide(node, f"d-{number}")
        node.publish("general/logger/a", log_record("INFO", f"record {number}"))
    node.say("draining")
    wait_until(lambda: stuck == told.keys(), what="every slow callback to hang")
    wait_until(lambda: all(len(of_one) >= 3 for name, of_one in told.items() if name != "presence"))
    wait_until(lambda: [one.state.value for one in told["presence"]][-1:] == ["draining"])
    started = time.monotonic()
    federation.close()
    took_s = time.monotonic() - started
    gate.set()

    assert numbers(told["samples"]) == [0, 1, 2]
    assert [one.id for one in told["decision"]] == ["d-0", "d-1", "d-2"]
    assert took_s < 10


def test_a_watch_shows_how_often_its_callback_failed(node: EchoNode, federate: Open) -> None:
    watch = federate().monitor(lambda sample: sample.values["no such metric"])
    node.wait(lambda: leases(node))

    send(node, batch(0))

    wait_until(lambda: repr(watch) == "<Watch: 2 samples, 0 missing, 0 lost; callback errors: 2>")


def test_of_samples_that_nobody_takes_the_newest_are_held(node: EchoNode, federate: Open) -> None:
    watch = federate().monitor()
    node.wait(lambda: leases(node))
    count = HELD_SAMPLES // 50 + 2
    for number in range(count):
        send(node, batch(number * 50, 50))
    wait_until(lambda: watch.delivered + watch.dropped == count * 50)

    first = watch.next(0)

    assert first is not None
    assert (first.seq, watch.dropped) == (100, 100)


def test_logs_of_nodes_come_as_records_of_python_logging_one_line_each(
    mosquitto: Broker, federate: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("fedmon.researcher.samples.logs.MAX_LOGGERS", 2)
    caplog.set_level(logging.DEBUG, logger="fedmon.node")
    with EchoNode(mosquitto.port, "a") as a, EchoNode(mosquitto.port, "b") as b, EchoNode(mosquitto.port, "c") as c:
        federation: Federation = federate()
        stream = federation.logs(lambda record: seen.append(record.msg), nodes=["a"], level="INFO")
        everybody = federation.logs(level="ERROR")
        federation.ping()

        for level, text in (("DEBUG", "no"), ("INFO", "yes"), ("ERROR", "100 % \x1b[31mred\nsecond \u202eline")):
            a.publish("general/logger/a", log_record(level, text))
        b.publish("general/logger/b", log_record("INFO", "not asked for", "b"))
        b.publish("general/logger/b", log_record("CRITICAL", "on fire", "b"))
        wait_until(lambda: any(record.levelname == "CRITICAL" for record in caplog.records) and len(seen) == 2)
        c.publish("general/logger/c", log_record("CRITICAL", "one of too many", "c"))
        wait_until(lambda: "one of too many" in caplog.text)
        stream.remove()
        everybody.remove()
        federation.ping()
        a.publish("general/logger/a", log_record("ERROR", "after the end"))
        assert stays(lambda: not any("after the end" in record.getMessage() for record in caplog.records), 0.1)

    records = [record for record in caplog.records if record.name.startswith("fedmon.node")]
    assert [(record.name, record.levelname, record.getMessage()) for record in records] == [
        ("fedmon.node.a", "INFO", "fedmon.node.requests.router: yes"),
        ("fedmon.node.a", "ERROR", "fedmon.node.requests.router: 100 % \\x1b[31mred\\nsecond \\u202eline"),
        ("fedmon.node.b", "CRITICAL", "fedmon.node.requests.router: on fire"),
        ("fedmon.node", "CRITICAL", "fedmon.node.requests.router: one of too many"),
    ]
    assert seen == ["yes", "100 % \x1b[31mred\nsecond \u202eline"]
    assert all(getattr(record, "fedmon_remote", False) for record in records)
    assert records[0].created == pytest.approx(1795255200)
