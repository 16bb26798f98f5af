"""The wire of Fed-BioMed 4.4, against payloads that were written down by hand."""

from __future__ import annotations

import json

import pytest

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire.fedbiomed4 import WireMessage
from fedmon.compat.fedbiomed import codec
from tests.support.fedbiomed4 import Message, payload

RESEARCHER = "researcher_5f6e1c1a-7d2f-4a4b-9f0e-0d6b3c2a1e11"


def decode(name: str, message: Message | bytes) -> WireMessage | None:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    if name.endswith("_request"):
        return codec.decode_request(data)
    if name == "add_scalar":
        return codec.decode_scalar(data)
    if name == "log":
        return codec.decode_log(data)[0]
    return codec.decode_reply(data, researcher_id=RESEARCHER)


def refused(name: str, message: Message | bytes) -> str:
    with pytest.raises(InvalidMessageError) as caught:
        decode(name, message)
    return caught.value.code


@pytest.mark.parametrize("version", ["0", "0.9", "2", "2.0", "1.0", "1.1", "fedmon/1", "", "\u0661", 1, None])
def test_another_version_is_refused(version: object) -> None:
    for name in ("ping_request", "ping_reply", "add_scalar", "log"):
        assert refused(name, payload(name) | {"protocol_version": version}) == "version"


@pytest.mark.parametrize("node_id", ["", "a/b", "a b", "+", "researcher", "nodes", "status", "x" * 65])
def test_a_node_whose_id_cannot_be_a_topic_is_not_believed(node_id: str) -> None:
    for name in ("ping_reply", "add_scalar", "log"):
        refused(name, payload(name) | {"node_id": node_id})


@pytest.mark.parametrize("text", ["plain text", "{}", "[]", '{"asctime": "x", "node_id": 1}'])
def test_a_log_record_without_its_inner_text_is_refused(text: str) -> None:
    assert refused("log", payload("log") | {"msg": text}) == "malformed"


def test_a_message_too_large_for_any_broker_is_not_written() -> None:
    reply = codec.decode_reply(json.dumps(payload("list_reply")).encode(), researcher_id=RESEARCHER)
    assert reply is not None
    record = payload("list_reply")["databases"][0]
    many = payload("list_reply") | {"databases": [record] * 5_000}

    with pytest.raises(InvalidMessageError, match="over the limit"):
        codec.encode(type(reply)(**{k: v for k, v in many.items() if k != "command"}))
