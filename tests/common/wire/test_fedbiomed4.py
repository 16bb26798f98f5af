"""Messages of Fed-BioMed 4.4 as dictionaries: exactly the fields of that version, each the right way."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire.fedbiomed4 import checked_reply, checked_request
from tests.support import fedbiomed4 as shapes
from tests.support.fedbiomed4 import payload

REQUESTS = ("ping", "list", "search", "approval", "training_plan_status", "train")
REPLIES = ("ping_reply", "list_reply", "search_reply", "approval_reply", "training_plan_status_reply", "train_reply",
           "error", "add_scalar", "log")  # fmt: skip
OTHER_TYPES: tuple[Any, ...] = ("text", 7, 7.5, True, None, [1], {"a": 1}, object())
RECORDED = [(checked_request, f"{name}_request") for name in REQUESTS] + [(checked_reply, name) for name in REPLIES]


@pytest.mark.parametrize(("check", "name"), RECORDED)
def test_a_recorded_message_is_taken_and_one_with_another_field_or_type_is_refused(check: Any, name: str) -> None:
    message = payload(name)
    types = (shapes.REQUESTS if check is checked_request else shapes.REPLIES)[message["command"]]
    wrong = [message | {"extra": 1}]
    for field in message.keys() - {"protocol_version"}:
        wrong.append({key: value for key, value in message.items() if key != field})
        wrong += [message | {field: value} for value in OTHER_TYPES if not isinstance(value, types[field])]

    assert check(message) == message
    for each in wrong:
        with pytest.raises(InvalidMessageError):
            check(each)


def test_a_request_is_given_the_protocol_version_and_a_reply_must_have_one() -> None:
    request = {key: value for key, value in payload("ping_request").items() if key != "protocol_version"}
    reply = {key: value for key, value in payload("ping_reply").items() if key != "protocol_version"}

    assert checked_request(request)["protocol_version"] == "1"
    with pytest.raises(InvalidMessageError, match="protocol_version"):
        checked_reply(reply)


@pytest.mark.parametrize("given", [{}, {"aux_var_urls": None}, {"aux_var_urls": ["http://x/aux"]}])
def test_a_field_of_version_4_5_is_written_only_where_it_is_given(given: dict[str, Any]) -> None:
    message = payload("train_request") | given

    assert checked_request(message) == message


@pytest.mark.parametrize(
    ("check", "message", "complaint"),
    [
        (checked_request, {}, "names no command"),
        (checked_request, {"command": "sing"}, "'sing' is not one of approval, list, ping"),
        (checked_request, payload("secagg_request"), "'secagg' is not one of"),
        (checked_request, payload("ping_reply"), "'pong' is not one of"),
        (checked_reply, payload("ping_request"), "'ping' is not one of"),
        (checked_request, payload("ping_request") | {"sequence": True}, "sequence"),
    ],
)
def test_a_message_that_is_none_or_goes_the_wrong_way_is_refused(
    check: Any, message: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidMessageError, match=complaint):
        check(message)
