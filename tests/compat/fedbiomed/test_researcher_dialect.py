"""What a researcher says and hears on the wire of Fed-BioMed 4.4, without a broker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest

from fedmon.common.clock import seconds_from_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId, new_id
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import Error, ListDatasets, LogRecord, Ping, SearchDatasets, SearchReply
from fedmon.common.wire.samples import AddScalar
from fedmon.compat.fedbiomed.researcher_dialect import MAX_STREAMS, FedBioMedDialect, Held, Listed
from fedmon.researcher.asking.match import Pending, PendingRequest
from fedmon.researcher.asking.submission import StatusByUrl
from fedmon.researcher.session.inbox import Tally
from tests.support.fedbiomed4 import REQUESTS, Message, fault, payload

RESEARCHER = "researcher_5f6e1c1a-7d2f-4a4b-9f0e-0d6b3c2a1e11"
NODE = "node_c1a0d7e2-3b64-4f1c-8b6f-5b8e6f0a9d22"
DIGEST = "0" * 64
URL = "http://127.0.0.1:8844/media/uploads/2023/06/14/my_model.py"
TAGS = ["blood", "adults"]
Heard = tuple[str, Message]


class Talk:
    """One researcher, and what a node may say to it."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.pending = Pending(new_id())
        self.dialect = FedBioMedDialect(
            researcher_id=RESEARCHER, instance="main", pending=self.pending, tally=self.tally
        )

    def request(self, kind: type[Request], **fields: Any) -> Request:
        return kind(
            researcher_id=RESEARCHER,
            id=new_id(),
            session=self.pending.session,
            sequence=self.pending.next_sequence(),
            expires=seconds_from_now(60),
            **fields,
        )

    def say(
        self, kind: type[Request], *, nodes: Sequence[NodeId] | None = None, **fields: Any
    ) -> tuple[Request, list[Message]]:
        """Ask, as a caller who waits; return the request and what goes out."""
        request = self.request(kind, **fields)
        self.pending.open(PendingRequest(request, nodes))
        said: list[Message] = [json.loads(data) for data in self.dialect.encode(request)]
        assert [fault(message, REQUESTS) for message in said] == [""] * len(said)
        assert {message["researcher_id"] for message in said} <= {RESEARCHER}
        return request, said

    def hear(
        self, name: str, *, topic: str = "general/researcher", **fields: Any
    ) -> list[Reply | AddScalar | LogRecord]:
        return list(self.dialect.read(topic, json.dumps(payload(name) | fields).encode()))

    def watched(self, **fields: Any) -> Batch:
        (scalar,) = self.hear("add_scalar", topic="general/monitoring", **fields)
        assert isinstance(scalar, AddScalar)
        batch = self.dialect.samples_of(scalar)
        assert batch is not None
        return batch

    def hear_reply(self, name: str, **fields: Any) -> Reply:
        (reply,) = self.hear(name, **fields)
        assert isinstance(reply, Reply)
        return reply


@pytest.fixture
def talk() -> Talk:
    return Talk()


def belongs(reply: Reply, request: Request) -> bool:
    """Tell whether a reply is taken as an answer to a request."""
    fields = ("researcher_id", "id", "session", "sequence")
    return all(getattr(reply, name) == getattr(request, name) for name in fields) and reply.node_id == NODE


def test_silence_before_the_barrier_of_a_list_is_a_failure(talk: Talk) -> None:
    request, (_, barrier) = talk.say(ListDatasets)

    reply = talk.hear_reply("ping_reply", sequence=barrier["sequence"])

    assert isinstance(reply, Error)
    assert belongs(reply, request)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": "one"},
        {"databases": [{"name": 5, "tags": TAGS}]},
        {"databases": [{"tags": "adults"}]},
        {"databases": [{"tags": TAGS, "dtypes": [1]}]},
        {"databases": [{"tags": TAGS, "dataset_parameters": []}]},
    ],
)
def test_a_reply_that_cannot_be_read_is_not_taken_for_silence(talk: Talk, wrong: dict[str, Any]) -> None:
    _, (_, barrier) = talk.say(SearchDatasets, tags=TAGS)
    with contextlib.suppress(InvalidMessageError):
        talk.hear("search_reply", **wrong)

    reply = talk.hear_reply("ping_reply", sequence=barrier["sequence"])

    assert isinstance(reply, Error)
    assert "cannot be read" in reply.reason


@pytest.mark.parametrize(
    ("tags", "before", "after"),
    [
        (["mri"], [], [("list_reply", {}), ("search_reply", {})]),
        (TAGS, [("search_reply", {})], []),
        (TAGS, [], [("search_reply", {"node_id": "another"})]),
        (TAGS, [], [("search_reply", {"researcher_id": "another", "protocol_version": "2"})]),
    ],
    ids=["to another process of ours", "before the search", "of another node", "unreadable, to another researcher"],
)
def test_what_is_no_answer_to_a_search_is_not_taken(
    talk: Talk, tags: list[str], before: list[Heard], after: list[Heard]
) -> None:
    for name, fields in before:
        talk.hear(name, **fields)
    _, (_, barrier) = talk.say(SearchDatasets, tags=tags)
    for name, fields in after:
        with contextlib.suppress(InvalidMessageError):
            talk.hear(name, **fields)

    reply = talk.hear_reply("ping_reply", sequence=barrier["sequence"])

    assert isinstance(reply, SearchReply)
    assert reply.datasets == []


def test_a_barrier_of_another_process_of_ours_takes_nothing_away(talk: Talk) -> None:
    _, (_, barrier) = talk.say(SearchDatasets, tags=TAGS)
    record = payload("search_reply")["databases"][0]
    talk.hear("search_reply", databases=[record] * 2, count=2)
    talk.hear("search_reply", databases=[record | {"tags": [*TAGS, "more"]}])
    talk.hear("ping_reply", sequence=1)

    reply = talk.hear_reply("ping_reply", sequence=barrier["sequence"])

    assert isinstance(reply, SearchReply)
    assert reply.count == 2


@pytest.mark.parametrize("change", [{"status": "Error", "success": False}, {"status": "Maybe"}])
def test_a_status_that_is_none_failed(talk: Talk, change: dict[str, Any]) -> None:
    _, (question,) = talk.say(StatusByUrl, sha256=DIGEST, url=URL)

    reply = talk.hear_reply("training_plan_status_reply", job_id=question["job_id"], **change)

    assert isinstance(reply, Error)
    assert reply.reason == "waits for review"


def test_a_status_of_another_job_is_counted_and_answers_nothing(talk: Talk) -> None:
    talk.say(StatusByUrl, sha256=DIGEST, url=URL)

    assert talk.hear("training_plan_status_reply") == []
    assert talk.tally.as_dict().get("replies of a wrong session, sequence or kind") == 1


def test_an_error_answers_the_newest_request_that_its_node_owes(talk: Talk) -> None:
    first, _ = talk.say(ListDatasets)
    second, _ = talk.say(Ping)

    replies = [talk.hear_reply("error")]
    talk.pending.match(replies[0])
    replies.append(talk.hear_reply("error"))
    talk.pending.match(replies[1])
    nobody = talk.hear("error")

    assert all(isinstance(reply, Error) for reply in replies)
    assert [belongs(reply, request) for reply, request in zip(replies, (second, first), strict=True)] == [True, True]
    assert replies[0].reason == "FB301: Protocol error: the message cannot be served"  # type: ignore[attr-defined]
    assert nobody == []
    assert talk.tally.as_dict().get("errors from nodes") == 1


def test_an_error_goes_to_a_request_that_asked_its_node(talk: Talk) -> None:
    request, _ = talk.say(ListDatasets, nodes=[NodeId(NODE)])
    talk.say(Ping, nodes=[NodeId("node_of_others")])

    assert belongs(talk.hear_reply("error"), request)


def test_scalars_become_samples_of_their_job(talk: Talk) -> None:
    test = {"train": False, "test": True}
    kinds: list[dict[str, bool]] = [
        {}, test, test | {"test_on_local_updates": True}, test | {"test_on_global_updates": True}
    ]  # fmt: skip

    batches = [talk.watched(**kind) for kind in kinds]

    assert [batch.seq for batch in batches] == [0, 1, 2, 3]
    assert {(batch.node_id, batch.stream) for batch in batches} == {
        (NODE, "job-job_9b2e6d1f-8c3a-4e7d-a5f4-6d9c8b7a5f04")
    }
    assert [batch.columns for batch in batches] == [
        {f'Loss{{phase="{phase}"}}': [0.4375]} for phase in ("train", "test", "test-local", "test-global")
    ]


def test_scalars_of_our_own_wire_are_no_samples_of_this_one(talk: Talk) -> None:
    assert talk.dialect.samples_of(AddScalar(node_id=NODE, metric={"loss": 0.5})) is None


def test_the_oldest_of_too_many_streams_of_scalars_begins_anew(talk: Talk) -> None:
    numbers = [talk.watched(job_id=f"job_{number % MAX_STREAMS}").seq for number in range(MAX_STREAMS + 1)]

    assert (numbers[-1], talk.watched(job_id="job_more").seq, talk.watched(job_id="job_1").seq) == (1, 0, 0)


def test_a_log_record_of_an_unknown_level_is_an_information(talk: Talk) -> None:
    (odd,) = talk.hear("log", topic="general/logger", level="Level 25")

    assert isinstance(odd, LogRecord)
    assert odd.level == "INFO"


def test_what_nobody_takes_is_bounded_in_size_and_age() -> None:
    large, old = Held(max_bytes=100), Held(held_s=10.0)
    said = Listed(by_tags=False, success=True, datasets=[])

    for number in range(1000):
        large.add(NodeId(f"invented-{number}"), said, size_bytes=30, at=0.0)
        old.add(NodeId(f"invented-{number}"), said, size_bytes=30, at=5.0 * number)

    for held in (large, old):
        kept = [number for number in range(1000) if held.take(NodeId(f"invented-{number}"), since=0.0)]
        assert kept == [997, 998, 999]
