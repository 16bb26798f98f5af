"""The historic arguments and defaults, as version 4.4 has them, beyond those that tests/contract holds."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from fedmon.researcher.historic.messaging import Messaging
from fedmon.researcher.historic.responses import Responses
from fedmon.researcher.requests import ReplyQueue, Requests

NEEDED = inspect.Parameter.empty
SIGNATURES: dict[Any, dict[str, Any]] = {
    Requests.__init__: {"mess": None},
    Responses.__init__: {"data": NEEDED},
    ReplyQueue.add: {"task": NEEDED},
    ReplyQueue.get: {"block": True},
    ReplyQueue.qsize: {},
    ReplyQueue.task_done: {},
}


@pytest.mark.parametrize("method", SIGNATURES, ids=lambda method: method.__qualname__)
def test_arguments_and_defaults_are_the_historic_ones(method: Any) -> None:
    parameters = inspect.signature(method).parameters

    assert {name: one.default for name, one in parameters.items() if name != "self"} == SIGNATURES[method]


def test_a_messaging_takes_its_arguments_by_place() -> None:
    parameters = list(inspect.signature(Messaging.__init__).parameters)

    assert parameters[1:6] == ["on_message", "messaging_type", "messaging_id", "mqtt_broker", "mqtt_broker_port"]
