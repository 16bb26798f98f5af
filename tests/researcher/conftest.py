"""Fixtures of the researcher's tests: a node, a federation."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.waiting import wait_until

Open = Callable[..., Federation]


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Return a function that interrupts the thread of the test, as Ctrl-C does."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def node(mosquitto: Broker) -> Iterator[EchoNode]:
    """Return node a, which answers honestly until a test says otherwise."""
    with EchoNode(mosquitto.port, "a") as running:
        yield running


@pytest.fixture
def federate(mosquitto: Broker, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens federations on one mosquitto, closed at the end of the test.

    It returns them once the nodes that it is given are online.
    """
    alice: dict[str, Any] = {"researcher_id": "alice", "folder": tmp_path / "alice", "timeout_s": 10.0}
    with ExitStack() as opened:

        def federate(*nodes: str, **options: Any) -> Federation:
            federation = opened.enter_context(Federation(**({"url": mosquitto.url} | alice | options)))
            if nodes:
                wait_until(lambda: set(nodes) <= set(federation.nodes().online), what=f"{nodes} online")
            return federation

        yield federate
