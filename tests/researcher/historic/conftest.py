"""Fixtures of the historic names: a `Requests` of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedmon.researcher.federation import Federation
from fedmon.researcher.requests import Requests
from tests.support.brokers import Broker
from tests.support.waiting import wait_until

Open = Callable[..., Requests]


@pytest.fixture
def open_requests(mosquitto: Broker, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the one `Requests` of this process on one mosquitto; closed after the test."""
    with ExitStack() as opened:

        def open_requests(*nodes: str, **options: Any) -> Requests:
            defaults: dict[str, Any] = {"url": mosquitto.url, "researcher_id": "alice", "folder": tmp_path / "alice"}
            federation = opened.enter_context(Federation(**(defaults | options)))
            requests = opened.enter_context(Requests(federation))
            if nodes:
                wait_until(lambda: set(nodes) <= set(federation.nodes().online), what=f"{nodes} to be known")
            return requests

        yield open_requests
