"""The way to a controller over HTTP: order, bounds, and answers that a controller should not give."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.actor import Actor
from fedmon.common.clock import Deadline
from fedmon.compat.nebula import controller as controllers
from fedmon.compat.nebula.controller import Controller
from tests.broker.certificates import make_broker_certificate
from tests.support.http_controller import HttpController, Posted
from tests.support.ports import free_port
from tests.support.stubborn import peer, silent_peer
from tests.support.waiting import wait_until


@contextlib.contextmanager
def to(address: str, scheme: str = "http", **more: float) -> Iterator[Controller]:
    controller = Controller(
        status_url=f"{scheme}://{address}/update",
        done_url=f"{scheme}://{address}/done",
        idx=1,
        **{"timeout_s": 60.0, **more},  # type: ignore[arg-type]  # numbers of both kinds
    )
    controller.start()
    try:
        yield controller
    finally:
        controller.stop(0.5)


def body(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


def test_the_oldest_statuses_go_when_too_many_wait_and_all_are_accounted_for() -> None:
    with to(f"127.0.0.1:{free_port()}", backlog=3) as controller:
        for number in range(10):
            controller.status(body(number))
        waiting = controller.counts()
    after = controller.counts()

    assert (waiting["queued"], waiting["dropped"], waiting["waiting"]) == (10, 7, 3)
    assert (after["dropped"], after["waiting"], after["delivered"]) == (10, 0, 0)


def test_a_status_that_makes_room_while_it_is_sent_is_counted_once() -> None:
    answer, arrived = threading.Event(), threading.Event()

    def wait(_posted: Posted) -> int:
        arrived.set()
        answer.wait(60)
        return 200

    with HttpController(wait) as server, to(server.address, backlog=1) as controller:
        controller.status(body(1))
        assert arrived.wait(60)
        controller.status(body(2))
        dropped = controller.counts()["dropped"]
        answer.set()
        wait_until(lambda: controller.counts()["delivered"] == 2)

    assert (dropped, controller.counts()["dropped"]) == (1, 0)


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (302, 1), (429, 2), (503, 2)])
def test_a_refusal_is_final_and_a_bad_moment_is_tried_again(status: int, tries: int) -> None:
    answers = iter([status])
    with HttpController(lambda _posted: next(answers, 200)) as server, to(server.address) as controller:
        controller.status(body(1))
        controller.status(body(2))
        wait_until(lambda: controller.counts()["waiting"] == 0)
        counts = controller.counts()

    assert [posted.body["n"] for posted in server.posted] == [1] * tries + [2]
    assert (counts["refused"], counts["delivered"]) == ((1, 1) if tries == 1 else (0, 2))


def test_the_end_does_not_wait_for_statuses_of_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmon.compat.nebula.controller.FIRST_RETRY_S", 30.0)
    answers = iter([500])
    with HttpController(lambda _posted: next(answers, 200)) as server, to(server.address) as controller:
        controller.status(body(1))
        wait_until(lambda: controller.counts()["failures"])
        controller.status(body(2))
        told = controller.finish(body(3), 60.0, given_up=threading.Event())

    assert told is True
    assert [(posted.path, posted.body.get("n")) for posted in server.posted] == [
        ("/update", 1), ("/update", 3), ("/done", None),
    ]  # fmt: skip
    assert (controller.counts()["queued"], controller.counts()["dropped"]) == (2, 2)


def test_the_last_status_is_repeated_with_the_end_only_until_it_is_taken() -> None:
    answers = iter([500, 500, 200, 500])
    with HttpController(lambda _posted: next(answers, 200)) as server, to(server.address) as controller:
        assert controller.finish(body(1), 60.0, given_up=threading.Event()) is True

    assert [posted.path for posted in server.posted] == ["/update", "/done", "/update", "/done", "/done"]


@pytest.mark.parametrize("is_given_up", [True, False])
def test_the_end_is_given_up_with_a_controller_that_never_answers(is_given_up: bool) -> None:
    given_up, within = threading.Event(), Deadline(30.0)
    if is_given_up:
        given_up.set()
    with silent_peer() as port, to(f"127.0.0.1:{port}", timeout_s=0.15) as controller:
        controller.status(body(1))

        assert controller.finish(b"", 60.0 if is_given_up else 0.4, given_up=given_up) is False

    assert not within.passed()


@pytest.mark.parametrize(
    "answer", [b"not HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000, b""]
)
def test_an_answer_that_is_garbage_endless_or_cut_off_ends_nothing(answer: bytes) -> None:
    def serve(client: socket.socket) -> None:
        client.recv(65_536)
        client.sendall(answer)

    with peer(serve) as port, to(f"127.0.0.1:{port}") as controller:
        controller.status(body(1))
        wait_until(lambda: controller.counts()["failures"] or controller.counts()["delivered"])
        controller.start()


def test_a_stop_sends_what_waits_and_a_start_goes_on() -> None:
    with HttpController() as server, to(server.address) as controller:
        for number in range(5):
            controller.status(body(number))
        controller.stop(60.0)
        controller.start()
        controller.status(body(5))
        wait_until(lambda: controller.counts()["delivered"] == 6)

    assert [posted.body["n"] for posted in server.posted] == list(range(6))
    assert server.posted[0].headers["User-Agent"] == "NEBULA Participant 1"


def test_a_start_during_a_stop_takes_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    during_stop: list[Callable[[], None]] = []

    class Interrupted(Actor):
        def post(self, job: Callable[[], object], **options: Any) -> bool:
            taken = super().post(job, **options)
            if during_stop:
                during_stop.pop()()  # as another thread may do at this moment
            return taken

    monkeypatch.setattr(controllers, "Actor", Interrupted)
    with HttpController() as server, to(server.address) as controller:
        during_stop.append(controller.start)
        controller.stop(60.0)

        controller.status(body(1))
        wait_until(lambda: controller.counts()["delivered"] == 1)

    assert [posted.body["n"] for posted in server.posted] == [1]


def test_a_controller_whose_authority_the_environment_names_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_broker_certificate(tmp_path)
    files = tmp_path / "certificates"
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files / "broker.crt", files / "broker.key")
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "ca.crt"))

    with HttpController(tls=tls) as server, to(server.address, "https") as controller:
        controller.status(body(1))
        wait_until(lambda: controller.counts()["failures"] or controller.counts()["delivered"])
        counts = controller.counts()

    assert (counts["failures"], counts["delivered"]) == (0, 1)
