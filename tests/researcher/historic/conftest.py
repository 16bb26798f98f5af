"""Fixtures of the historic names: a `Requests` of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fedmon.researcher.requests import Requests
from tests.researcher.conftest import Open as OpenFederation

Open = Callable[..., Requests]


@pytest.fixture
def open_requests(federate: OpenFederation) -> Iterator[Open]:
    """Return a function that opens the one `Requests` of this process, as ``federate`` does; closed after the test."""
    with ExitStack() as opened:

        def open_requests(*nodes: str, **options: Any) -> Requests:
            return opened.enter_context(Requests(federate(*nodes, **options)))

        yield open_requests
