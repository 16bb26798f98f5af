"""What a node hears and says on the wire of Fed-BioMed 4.4, without a broker."""

from __future__ import annotations

import json

import msgspec
import pytest

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire import messages
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import Dataset
from fedmon.compat.fedbiomed.node_dialect import FedBioMedDialect
from fedmon.node.requests.dialect import RefusedMessageError, echo
from tests.support.fedbiomed4 import Message, payload

NODE = "node_c1a0d7e2-3b64-4f1c-8b6f-5b8e6f0a9d22"
CELLS = Dataset(dataset_id="d1", name="cells", data_type="csv", tags=["cells"], shape=[3, 1], dtypes={"a": "int64"})


@pytest.fixture
def dialect() -> FedBioMedDialect:
    return FedBioMedDialect()


def heard(dialect: FedBioMedDialect, message: Message) -> Request:
    return dialect.request("general/nodes", json.dumps(message).encode())


@pytest.mark.parametrize("researcher_id", ["nodes", "status", "a/b", "x" * 65])
def test_a_researcher_whose_id_no_policy_could_name_is_refused(dialect: FedBioMedDialect, researcher_id: str) -> None:
    with pytest.raises(RefusedMessageError):
        heard(dialect, payload("ping_request") | {"researcher_id": researcher_id})


def test_a_list_that_does_not_fit_into_one_message_is_refused(dialect: FedBioMedDialect) -> None:
    request = heard(dialect, payload("list_request"))
    first_page = messages.ListReply(datasets=[CELLS], count=9, next_offset=1, **echo(request, NODE))

    with pytest.raises(InvalidMessageError, match="do not fit") as caught:
        dialect.answer(first_page, request)

    assert caught.value.code == "too-large"


def test_the_most_that_is_put_into_a_reply_fits_into_a_message(dialect: FedBioMedDialect) -> None:
    request = heard(dialect, payload("list_request"))
    one = len(msgspec.json.encode(CELLS)) + 1
    many = [CELLS] * (dialect.page_bytes // one)

    reply = messages.ListReply(datasets=many, count=len(many), **echo(request, NODE))
    listed = dialect.answer(reply, request)

    assert listed is not None
    assert len(json.loads(listed.payload)["databases"]) == len(many)
