"""What several files of tests over real nodes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers import Broker


@pytest.fixture(scope="module")
def lasting_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A mosquitto of all tests of a file, for a node that they share."""
    running = Broker("mosquitto", tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()
