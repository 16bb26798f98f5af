"""The shared fixtures keep their own promises."""

from __future__ import annotations

import pytest

from tests.support.brokers import Broker
from tests.support.ports import free_port
from tests.support.waiting import stays, wait_until


def test_a_broker_comes_back_on_its_port_after_a_crash(broker: Broker) -> None:
    port, pid = broker.port, broker.pid

    broker.kill()
    down = broker.pid
    broker.start()

    assert down is None
    assert broker.port == port
    assert broker.pid != pid


def test_each_test_gets_a_port_of_its_own(mosquitto: Broker) -> None:
    assert free_port() != mosquitto.port


def test_waiting_in_vain_fails_and_says_for_what() -> None:
    with pytest.raises(pytest.fail.Exception, match="rain did not come true within"):
        wait_until(lambda: False, 0.05, what="rain")


def test_something_that_changes_does_not_stay() -> None:
    looks = iter([True, True, False])

    assert not stays(lambda: next(looks), 5.0)
