"""The historic message factories: exactly the fields of version 4.4, each the right way."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from fedmon.common.errors import FedmonError, InvalidMessageError
from fedmon.common.wire.historic_messages import ErrorNumbers, HistoricMessage, ResearcherMessages


class NodeMessages(ResearcherMessages):
    """Messages as a node sees them: the other way round."""

    INCOMING = ResearcherMessages.OUTGOING
    OUTGOING = ResearcherMessages.INCOMING


# The field sets of version 4.4, written down from its message classes.
REQUESTS: dict[str, dict[str, Any]] = {
    "ping": {"researcher_id": "r", "sequence": 1},
    "list": {"researcher_id": "r"},
    "search": {"researcher_id": "r", "tags": ["a"]},
    "approval": {"researcher_id": "r", "description": "d", "sequence": 1, "training_plan_url": "http://x/plan"},
    "training-plan-status": {"researcher_id": "r", "job_id": "j", "training_plan_url": "http://x/plan"},
    "train": {
        "researcher_id": "r",
        "job_id": "j",
        "params_url": "u",
        "training_args": {},
        "dataset_id": "d",
        "training": True,
        "model_args": {},
        "training_plan_url": "u",
        "training_plan_class": "c",
        "secagg_servkey_id": None,
        "secagg_biprime_id": None,
        "secagg_random": 0.5,
        "secagg_clipping_range": None,
        "round": 1,
        "aggregator_args": {},
    },
    "secagg": {
        "researcher_id": "r",
        "secagg_id": "s",
        "sequence": 1,
        "element": 0,
        "job_id": None,
        "parties": ["r", "n"],
    },
    "secagg-delete": {"researcher_id": "r", "secagg_id": "s", "sequence": 1, "element": 0, "job_id": "j"},
}
REPLIES: dict[str, dict[str, Any]] = {
    "pong": {"researcher_id": "r", "node_id": "n", "success": True, "sequence": 1},
    "list": {"researcher_id": "r", "success": True, "databases": [], "node_id": "n", "count": 0},
    "search": {"researcher_id": "r", "success": True, "databases": [{"name": "x"}], "node_id": "n", "count": 1},
    "approval": {"researcher_id": "r", "node_id": "n", "sequence": 1, "status": 200, "success": True},
    "training-plan-status": {
        "researcher_id": "r",
        "node_id": "n",
        "job_id": "j",
        "success": True,
        "approval_obligation": True,
        "status": "Pending",
        "msg": "m",
        "training_plan_url": "u",
    },
    "train": {
        "researcher_id": "r",
        "job_id": "j",
        "success": True,
        "node_id": "n",
        "dataset_id": "d",
        "params_url": "u",
        "timing": {},
        "sample_size": None,
        "msg": "m",
    },
    "secagg": {
        "researcher_id": "r",
        "secagg_id": "s",
        "sequence": 1,
        "success": True,
        "node_id": "n",
        "msg": "m",
    },
    "secagg-delete": {
        "researcher_id": "r",
        "secagg_id": "s",
        "sequence": 1,
        "success": True,
        "node_id": "n",
        "msg": "m",
    },
    "add_scalar": {
        "researcher_id": "r",
        "node_id": "n",
        "job_id": "j",
        "train": True,
        "test": False,
        "test_on_local_updates": False,
        "test_on_global_updates": False,
        "metric": {"loss": 0.5},
        "epoch": None,
        "total_samples": 10,
        "batch_samples": 5,
        "num_batches": 2,
        "num_samples_trained": 5,
        "iteration": 1,
    },
    "log": {"researcher_id": "<unknown>", "node_id": "n", "level": "INFO", "msg": "{}"},
    "error": {"researcher_id": "r", "node_id": "n", "errnum": ErrorNumbers.FB301, "extra_msg": "x"},
}
WAYS = [
    *((ResearcherMessages, NodeMessages, command, fields) for command, fields in REQUESTS.items()),
    *((NodeMessages, ResearcherMessages, command, fields) for command, fields in REPLIES.items()),
]
SENT = pytest.mark.parametrize(("sender", "receiver", "command", "fields"), WAYS)


@SENT
def test_what_one_side_sends_the_other_side_takes(sender: Any, receiver: Any, command: str, fields: Any) -> None:
    given = {"command": command, **fields}

    outgoing = sender.format_outgoing_message(given)
    incoming = receiver.format_incoming_message(outgoing.get_dict())

    assert given | {"protocol_version": "1"} == outgoing.get_dict() == incoming.get_dict()
    assert outgoing == incoming
    assert "protocol_version" not in given


@SENT
def test_a_missing_an_extra_and_a_wrong_typed_field_are_refused(
    sender: Any, receiver: Any, command: str, fields: dict[str, Any]
) -> None:
    whole = {"command": command, "protocol_version": "1", **fields}
    wrong = [{**whole, "extra": 1}]
    for name in whole:
        wrong.append({key: value for key, value in whole.items() if key != name})
        wrong.append(whole | {name: object()})
        wrong.append(whole | {name: 3j})

    for message in wrong:
        with pytest.raises(FedmonError):
            receiver.format_incoming_message(message)
        if "protocol_version" in message and message["protocol_version"] == "1":
            with pytest.raises(FedmonError):
                sender.format_outgoing_message(message)


@pytest.mark.parametrize("given", [{}, {"aux_var_urls": None}, {"aux_var_urls": ["http://x/aux"]}])
def test_a_field_of_version_4_5_is_read_where_it_is_given_and_written_only_then(given: dict[str, Any]) -> None:
    message = {"command": "train", **REQUESTS["train"], **given}

    outgoing = ResearcherMessages.format_outgoing_message(message)
    incoming = NodeMessages.format_incoming_message(outgoing.get_dict())

    assert message | {"protocol_version": "1"} == outgoing.get_dict() == incoming.get_dict()


@pytest.mark.parametrize("factory", [ResearcherMessages, NodeMessages])
@pytest.mark.parametrize("message", [{}, {"a": 1}, {"command": "sing"}, {"command": None}, [], None, "ping"])
def test_what_names_no_known_command_is_refused(factory: Any, message: Any) -> None:
    for check in (factory.format_incoming_message, factory.format_outgoing_message):
        with pytest.raises(InvalidMessageError):
            check(message)


def test_a_message_that_goes_the_wrong_way_is_refused_with_the_commands_there_are() -> None:
    with pytest.raises(InvalidMessageError, match="'pong' is not one of approval, list, ping"):
        ResearcherMessages.format_outgoing_message({"command": "pong", **REPLIES["pong"]})
    with pytest.raises(InvalidMessageError, match="'ping' is not one of"):
        ResearcherMessages.format_incoming_message({"command": "ping", "protocol_version": "1", **REQUESTS["ping"]})


def test_a_truth_value_is_no_number() -> None:
    with pytest.raises(InvalidMessageError, match="sequence"):
        ResearcherMessages.format_outgoing_message({"command": "ping", "researcher_id": "r", "sequence": True})


def test_fields_are_read_by_name_and_a_wrong_name_says_which_there_are() -> None:
    message = ResearcherMessages.format_outgoing_message({"command": "ping", "researcher_id": "r", "sequence": 4})

    assert (message.kind, message.get_param("sequence"), message.researcher_id) == ("PingRequest", 4, "r")
    with pytest.raises(InvalidMessageError, match="researcher_id, sequence, command"):
        message.get_param("tags")
    with pytest.raises(AttributeError):
        _ = message.tags


def test_a_message_cannot_be_changed_but_copied() -> None:
    message = ResearcherMessages.format_outgoing_message({"command": "search", "researcher_id": "r", "tags": ["a"]})

    with pytest.raises(AttributeError, match="immutable"):
        message.tags = []
    message.get_dict()["researcher_id"] = "changed"

    assert message.get_param("researcher_id") == "r"
    assert message == copy.deepcopy(message) == pickle.loads(pickle.dumps(message))
    assert isinstance(message, HistoricMessage)
