"""What a node hears and says on the wire of Fed-BioMed 4.4, without a broker."""

from __future__ import annotations

import datetime
import json
from typing import Any

import msgspec
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import new_id
from fedmon.common.wire import envelope, messages
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import Dataset, Error, ErrorCode, LogRecord, PlanDecision, PlanStatus
from fedmon.compat.fedbiomed.node_dialect import FedBioMedDialect
from fedmon.node.requests.dialect import Outgoing, RefusedMessageError, Sender
from fedmon.node.requests.handlers import PlanApprovalByUrl, PlanError, PlanStatusByUrl
from tests.support.fedbiomed4 import REPLIES, Message, fault, payload

NODE = "node_c1a0d7e2-3b64-4f1c-8b6f-5b8e6f0a9d22"
RESEARCHER = "researcher_5f6e1c1a-7d2f-4a4b-9f0e-0d6b3c2a1e11"
URL = "http://127.0.0.1:8844/media/uploads/2023/06/14/my_model.py"
DIGEST = "0" * 64
CELLS = Dataset(dataset_id="d1", name="cells", data_type="csv", tags=["cells"], shape=[3, 1], dtypes={"a": "int64"})


@pytest.fixture
def dialect() -> FedBioMedDialect:
    return FedBioMedDialect(NODE)


def heard(dialect: FedBioMedDialect, message: object, topic: str = "general/nodes") -> Request:
    return dialect.request(topic, json.dumps(message).encode())


def echo(request: Request) -> dict[str, Any]:
    return {
        "node_id": NODE,
        "researcher_id": request.researcher_id,
        "id": request.id,
        "session": request.session,
        "sequence": request.sequence,
    }


def said(outgoing: Outgoing | None) -> Message:
    assert outgoing is not None
    assert (outgoing.topic, outgoing.qos) == ("general/researcher", 0)
    document: Message = json.loads(outgoing.payload)
    assert not fault(document, REPLIES)
    assert (document["researcher_id"], document["node_id"]) == (RESEARCHER, NODE)
    return document


def answer(dialect: FedBioMedDialect, reply: envelope.Reply, request: Request | None) -> Message:
    return said(dialect.answer(reply, to=Sender(researcher_id=RESEARCHER), request=request))


@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        ("ping_request", messages.Ping, {"sequence": 23}),
        ("list_request", messages.ListDatasets, {"offset": 0}),
        ("search_request", messages.SearchDatasets, {"tags": ["blood", "adults"]}),
        ("approval_request", PlanApprovalByUrl, {"url": URL, "description": "Mean of each column", "sequence": 7}),
        (
            "training_plan_status_request",
            PlanStatusByUrl,
            {"url": URL, "job_id": "job_9b2e6d1f-8c3a-4e7d-a5f4-6d9c8b7a5f04"},
        ),
    ],
)
@pytest.mark.parametrize("topic", ["general/nodes", f"general/{NODE}"])
def test_a_request_becomes_ours(
    dialect: FedBioMedDialect, name: str, kind: type[Request], fields: dict[str, Any], topic: str
) -> None:
    request = heard(dialect, payload(name), topic)

    assert type(request) is kind
    assert request.researcher_id == RESEARCHER
    assert {field: getattr(request, field) for field in fields} == fields
    assert request.expires > utc_now() + datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sequence": "23"}, ErrorCode.MALFORMED),
        ({"extra": 1}, ErrorCode.MALFORMED),
        ({"command": "reboot"}, ErrorCode.UNKNOWN_COMMAND),
        ({"command": "train"}, ErrorCode.UNSUPPORTED),
        ({"protocol_version": "2"}, ErrorCode.VERSION),
    ],
)
def test_a_bad_message_is_refused_with_whom_to_tell(
    dialect: FedBioMedDialect, change: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(RefusedMessageError) as caught:
        heard(dialect, payload("ping_request") | change)

    assert caught.value.sender == Sender(researcher_id=RESEARCHER)
    assert caught.value.code == code.value


@pytest.mark.parametrize("researcher_id", ["nodes", "status", "a/b", "x" * 65])
def test_a_researcher_whose_id_no_policy_could_name_is_refused(dialect: FedBioMedDialect, researcher_id: str) -> None:
    with pytest.raises(RefusedMessageError):
        heard(dialect, payload("ping_request") | {"researcher_id": researcher_id})


def test_a_list_that_does_not_fit_into_one_message_is_refused(dialect: FedBioMedDialect) -> None:
    request = heard(dialect, payload("list_request"))
    first_page = messages.ListReply(datasets=[CELLS], count=9, next_offset=1, **echo(request))

    with pytest.raises(InvalidMessageError, match="do not fit") as caught:
        dialect.answer(first_page, to=Sender(researcher_id=RESEARCHER), request=request)

    assert caught.value.code == "too-large"


@pytest.mark.parametrize("http_status", [0, 404])
def test_a_plan_that_was_not_fetched_tells_how_its_download_ended(dialect: FedBioMedDialect, http_status: int) -> None:
    request = heard(dialect, payload("approval_request"))
    reply = PlanError(code=ErrorCode.FAILED, reason="x", http_status=http_status, **echo(request))

    assert answer(dialect, reply, request) == payload("approval_reply") | {"success": False, "status": http_status}


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (PlanStatus.APPROVED, "Approved"),
        (PlanStatus.REJECTED, "Rejected"),
        (PlanStatus.PENDING, "Pending"),
        (None, "Not Registered"),
    ],
)
def test_the_status_of_a_plan_is_told_in_their_words(
    dialect: FedBioMedDialect, status: PlanStatus | None, word: str
) -> None:
    request = heard(dialect, payload("training_plan_status_request"))
    reply = messages.TrainingPlanStatusReply(sha256=DIGEST, status=status, note="too slow", **echo(request))

    told = answer(dialect, reply, request)

    assert told == payload("training_plan_status_reply") | {"status": word, "msg": told["msg"]}
    assert "too slow" in told["msg"]


def test_a_status_that_cannot_be_told_is_a_failure_of_its_own_kind(dialect: FedBioMedDialect) -> None:
    request = heard(dialect, payload("training_plan_status_request"))
    reply = PlanError(code=ErrorCode.FAILED, reason="no such host", http_status=0, **echo(request))

    told = answer(dialect, reply, request)

    assert (told["success"], told["status"], told["msg"]) == (False, "Error", "no such host")
    assert (told["job_id"], told["training_plan_url"]) == ("job_9b2e6d1f-8c3a-4e7d-a5f4-6d9c8b7a5f04", URL)


@pytest.mark.parametrize(
    ("code", "errnum"),
    [
        (ErrorCode.MALFORMED, "FB301: Protocol error"),
        (ErrorCode.VERSION, "FB301: Protocol error"),
        (ErrorCode.UNKNOWN_COMMAND, "FB301: Protocol error"),
        (ErrorCode.UNSUPPORTED, "FB301: Protocol error"),
        (ErrorCode.REFUSED, "FB300: undetermined node error"),
        (ErrorCode.FAILED, "FB300: undetermined node error"),
        (ErrorCode.BUSY, "FB300: undetermined node error"),
        (ErrorCode.TOO_LARGE, "FB300: undetermined node error"),
    ],
)
def test_an_error_carries_a_number_that_they_know(dialect: FedBioMedDialect, code: ErrorCode, errnum: str) -> None:
    request = heard(dialect, payload("ping_request"))

    told = answer(dialect, Error(code=code, reason="why", **echo(request)), request)

    assert told == payload("error") | {"errnum": errnum, "extra_msg": "why"}


def test_nothing_is_said_that_this_wire_has_no_message_for(dialect: FedBioMedDialect) -> None:
    to = Sender(researcher_id=RESEARCHER)
    decision = PlanDecision(
        node_id=NODE, researcher_id=RESEARCHER, id=new_id(), boot=1, plan_id="p", sha256=DIGEST, name="n",
        status=PlanStatus.APPROVED, decided=utc_now(),
    )  # fmt: skip

    assert dialect.answer(decision, to=to, request=None) is None


def test_a_log_record_goes_out_as_they_write_it(dialect: FedBioMedDialect) -> None:
    record = LogRecord(
        node_id=NODE, boot=1, time=utc_now(), level="WARNING", logger="fedmon.node", msg='disk "a" is nearly full'
    )

    outgoing = dialect.log(record)

    assert (outgoing.topic, outgoing.qos) == ("general/logger", 0)
    document = json.loads(outgoing.payload)
    assert not fault(document, REPLIES)
    assert document == payload("log") | {"msg": document["msg"]}
    inner = json.loads(document["msg"])
    assert inner.keys() == json.loads(payload("log")["msg"]).keys()
    assert (inner["message"], inner["level"]) == ('disk "a" is nearly full', "WARNING")
    written = datetime.datetime.strptime(inner["asctime"], "%Y-%m-%d %H:%M:%S,%f").astimezone()
    assert abs((written - record.time).total_seconds()) < 0.001 + 1e-6


def test_the_most_that_is_put_into_a_reply_fits_into_a_message(dialect: FedBioMedDialect) -> None:
    request = heard(dialect, payload("list_request"))
    one = len(msgspec.json.encode(CELLS)) + 1
    many = [CELLS] * (dialect.page_bytes // one)

    listed = answer(dialect, messages.ListReply(datasets=many, count=len(many), **echo(request)), request)

    assert len(listed["databases"]) == len(many)
