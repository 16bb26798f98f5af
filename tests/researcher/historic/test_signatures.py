"""The historic names, arguments and defaults, as version 4.4 has them."""

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
    Requests.add_monitor_callback: {"callback": NEEDED},
    Requests.remove_monitor_callback: {},
    Requests.get_messages: {"commands": [], "time": 0},
    Requests.get_messaging: {},
    Requests.get_responses: {
        "look_for_commands": NEEDED,
        "timeout": None,
        "only_successful": True,
        "while_responses": True,
    },
    Requests.list: {"nodes": None, "verbose": False},
    Requests.on_message: {"msg": NEEDED, "topic": NEEDED},
    Requests.ping_nodes: {},
    Requests.search: {"tags": NEEDED, "nodes": None},
    Requests.send_message: {"msg": NEEDED, "client": None, "add_sequence": False},
    Requests.training_plan_approve: {
        "training_plan": NEEDED,
        "description": "no description provided",
        "nodes": [],
        "timeout": 5,
    },
    Messaging.start: {"block": False},
    Messaging.stop: {},
    Messaging.send_message: {"msg": NEEDED, "client": None},
    Messaging.send_error: {"errnum": NEEDED, "extra_msg": "", "researcher_id": "<unknown>"},
    Messaging.is_connected: {},
    Messaging.is_failed: {},
    Responses.__init__: {"data": NEEDED},
    Responses.append: {"response": NEEDED},
    Responses.get_index_from_node_id: {"node_id": NEEDED},
    ReplyQueue.add: {"task": NEEDED},
    ReplyQueue.get: {"block": True},
    ReplyQueue.qsize: {},
    ReplyQueue.task_done: {},
}


@pytest.mark.parametrize("method", SIGNATURES, ids=lambda method: method.__qualname__)
def test_names_arguments_and_defaults_are_the_historic_ones(method: Any) -> None:
    parameters = inspect.signature(method).parameters

    positional = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name != "self" and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }

    assert SIGNATURES[method] == positional
    assert list(SIGNATURES[method]) == list(positional)


def test_a_messaging_takes_its_arguments_by_place() -> None:
    parameters = list(inspect.signature(Messaging.__init__).parameters)

    assert parameters[1:6] == [
        "on_message",
        "messaging_type",
        "messaging_id",
        "mqtt_broker",
        "mqtt_broker_port",
    ]


def test_node_log_messages_are_printed_without_an_object() -> None:
    assert isinstance(inspect.getattr_static(Requests, "print_node_log_message"), staticmethod)


def test_the_queue_of_replies_has_the_methods_of_a_tasks_queue() -> None:
    for name in ("add", "get", "qsize", "task_done"):
        assert callable(getattr(ReplyQueue, name))
