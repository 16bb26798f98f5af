"""Which runs a node begins: each refusal is a reply that says what would help, and a line of the audit."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fedmon.common.clock import Deadline
from fedmon.common.ids import new_id
from fedmon.common.settings.values import PolicySettings
from fedmon.common.wire.messages import PlanStatus
from fedmon.common.wire.runs import Parcel, RunLimits
from fedmon.node.registers.dataset_source import measure
from fedmon.node.registers.datasets import DatasetFields
from fedmon.node.requests.dialect import DeclinedError
from fedmon.node.runs.admission import Admitted
from tests.node.runs.run_desks import ALICE, PLAN, Bench, bench, digest, run
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("node") / "n"
    with bench(folder, is_ready=False, runs={"max_jobs": 4}) as opened:
        opened.offer("cells", "cells", "blood")
        opened.offer("more", "more", "blood")
        yield opened


@pytest.fixture
def plan(node: Bench) -> str:
    return node.approve()


def refused(node: Bench, *, code: str, **fields: Any) -> str:
    """Return the reason of a refusal, which the audit has, too; nothing of the job was kept."""
    request = run(**fields)

    reply = node.ask(request)

    assert (reply["command"], reply.get("code")) == ("error", code), reply
    line = node.audit("run-refused")[-1]
    assert (line["job"], line["reason"], line["code"]) == (request.job_id, reply["reason"], code)
    assert node.runs.register.find(request.job_id) is None
    return str(reply["reason"])


def test_bytes_that_nobody_asked_about_do_not_run(node: Bench) -> None:
    assert "ask for the approval of exactly these bytes" in refused(node, code="refused", sha256="0" * 64)


@pytest.mark.parametrize(
    ("status", "says"), [(PlanStatus.PENDING, "has not decided yet"), (PlanStatus.REJECTED, "rejected plan")]
)
def test_a_plan_without_approval_does_not_run(node: Bench, status: PlanStatus, says: str) -> None:
    sha256 = node.approve(PLAN + f"# {status.value}\n".encode(), name=f"plan {status.value}")
    node.local.registers.plans.decide(sha256, status, note="not this one")

    reason = refused(node, code="refused", sha256=sha256)

    assert says in reason
    assert ("not this one" in reason) == (status is PlanStatus.REJECTED)


def test_a_plan_whose_file_was_changed_does_not_run(node: Bench) -> None:
    source = PLAN + b"# kept\n"
    sha256 = node.approve(source, name="changed")
    (node.path / "plans" / sha256).write_bytes(source + b"# evil\n")

    reason = refused(node, code="failed", sha256=sha256)

    assert "differ from those that its owner approved" in reason
    assert str(node.path) not in reason


def test_a_dataset_that_is_hidden_and_one_that_is_not_there_get_the_same_answer(node: Bench, plan: str) -> None:
    hidden = node.offer(f"hidden-{new_id()[-6:]}", "secret")
    name = node.local.registers.datasets.get(hidden).name
    node.local.policy.follow(PolicySettings(researchers=("*",), datasets={name: ("bob",)}))
    absent = hidden[:-4] + "beef"

    told = refused(node, code="refused", sha256=plan, dataset_id=hidden)
    by_tag = refused(node, code="refused", sha256=plan, tags=["secret"])

    assert told.replace(hidden, "X") == refused(node, code="refused", sha256=plan, dataset_id=absent).replace(
        absent, "X"
    )
    assert by_tag == refused(node, code="refused", sha256=plan, tags=["nothing"]).replace("nothing", "secret")


def test_tags_of_several_datasets_name_them(node: Bench, plan: str) -> None:
    reason = refused(node, code="refused", sha256=plan, tags=["blood"])

    assert "2 datasets of this node" in reason
    assert "'cells'" in reason
    assert "'more'" in reason


def test_a_dataset_with_the_nodes_own_folder_in_it_is_given_to_no_plan(node: Bench, plan: str) -> None:
    name = f"all-{new_id()[-6:]}"
    fields = DatasetFields(name=name, data_type="custom", tags=("all",))
    record = node.local.registers.datasets.add(fields, measure(node.path.parent, "custom"))

    assert "holds the folder of the node itself" in refused(
        node, code="failed", sha256=plan, dataset_id=record.dataset_id
    )


def test_arguments_have_a_size(node: Bench, plan: str) -> None:
    assert "more than 65536" in refused(node, code="too-large", sha256=plan, arguments={"text": "x" * 70_000})


def parcel(content: bytes, **fields: Any) -> Parcel:
    given: dict[str, Any] = {
        "format": "json",
        "sha256": digest(content),
        "size_bytes": len(content),
        "json": content.decode(),
    }
    return Parcel(**given | fields)


@pytest.mark.parametrize(
    ("inputs", "code", "says"),
    [
        (parcel(b"{}", url="https://example.org/x"), "malformed", "exactly one of"),
        (parcel(b"{}", json=None), "malformed", "exactly one of"),
        (parcel(b"{}", format="npz"), "malformed", "cannot be used"),
        (parcel(b"{}", json=None, base64="***"), "malformed", "not valid base64"),
        (parcel(b"{}", sha256="1" * 64), "malformed", "its digest is"),
        (parcel(b"{}", size_bytes=3), "malformed", "that were announced"),
        (parcel(b"{}", size_bytes=2**40), "too-large", "max_input_bytes"),
        (parcel(b'{"a":NaN}'), "malformed", "cannot be used"),
        (parcel(b'{"a":1,"a":2}'), "malformed", "cannot be used"),
        (parcel(b"[" * 40 + b"]" * 40), "malformed", "cannot be used"),
        (
            parcel(b"PK no zip", format="npz", json=None, base64=base64.b64encode(b"PK no zip").decode()),
            "malformed",
            "cannot be used",
        ),
    ],
)
def test_inputs_are_checked_before_a_plan_gets_them(
    node: Bench, plan: str, inputs: Parcel, code: str, says: str
) -> None:
    assert says in refused(node, code=code, sha256=plan, inputs=inputs)


def test_a_node_that_runs_nothing_says_so_and_how_it_would(node: Bench, plan: str) -> None:
    settings = node.settings
    node.runs.follow(msgspec.structs.replace(settings, runs=msgspec.structs.replace(settings.runs, enabled=False)))

    reason = refused(node, code="unsupported", sha256=plan)
    node.runs.follow(settings)

    assert "`enabled = true` in [runs]" in reason


def admitted(node: Bench, sha256: str, *, running: int = 0, **fields: Any) -> Admitted:
    return node.runs._admission.admit(run(sha256, **fields), node.settings, running=running)


def test_more_jobs_than_the_owner_allows_are_refused_as_busy(node: Bench, plan: str) -> None:
    with pytest.raises(DeclinedError, match="allows 4 at a time") as refusal:
        admitted(node, plan, running=4)

    assert refusal.value.code.value == "busy"


def test_limits_above_the_owners_are_lowered_and_that_is_told(node: Bench, plan: str) -> None:
    got = admitted(node, plan, limits=RunLimits(memory_bytes=2**50, wall_s=5.0))

    assert (got.limits.memory_bytes, got.limits.wall_s) == (4 * 2**30, 5.0)
    assert got.lowered == "memory_bytes is 4.0 GiB, the most that this node gives, and not 1.0 PiB"


def test_one_dataset_among_those_of_a_researcher_is_found_by_its_tags(node: Bench, plan: str) -> None:
    by_tags = admitted(node, plan, tags=["blood", "cells"], by=ALICE).dataset

    assert by_tags is not None
    assert by_tags.name == "cells"
    assert by_tags == admitted(node, plan, dataset_id=by_tags.dataset_id).dataset


def test_a_file_that_is_swapped_all_the_time_never_gives_other_bytes_than_the_approved(node: Bench) -> None:
    # given an approved plan whose file another thread replaces as fast as it can
    source, evil = PLAN + b"# raced\n", PLAN + b"# EVIL\n"
    sha256 = node.approve(source, name="raced")
    path = node.path / "plans" / sha256
    done, swaps = threading.Event(), [0]

    def swap() -> None:
        while not done.is_set():
            for content in (evil, source):
                staged = path.with_name("staged")
                staged.write_bytes(content)
                os.replace(staged, path)
                swaps[0] += 1

    racer = threading.Thread(target=swap)
    racer.start()
    got: list[bytes] = []
    refusals: list[str] = []
    try:
        wait_until(lambda: swaps[0] > 10, what="a thread that swaps")
        # when runs are asked for 500 times, and until one met other bytes
        deadline = Deadline(60.0)
        while len(got) + len(refusals) < 500 or not (refusals or deadline.passed()):
            try:
                got.append(admitted(node, sha256).source)
            except DeclinedError as refusal:
                refusals.append(str(refusal))
    finally:
        done.set()
        racer.join()

    # then what would have run is only ever what was approved
    assert set(got) == {source}
    assert refusals
    assert all("differ from those that its owner approved" in reason for reason in refusals)
