"""What a run is given: checked before anything is sent, and packed once."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.common.settings.values import RepositorySettings, ResearcherSettings
from fedmon.common.wire.messages import ApprovalReply, PlanStatus
from fedmon.common.wire.runs import RunLimits
from fedmon.plan import parcels
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.start import checked_arguments, checked_limits, digest_of, packed
from tests.support.brokers import Broker

NO_REPOSITORY = RepositorySettings()
DIGEST = "ab" * 32


def test_json_values_are_taken_as_they_are() -> None:
    given = {
        "rounds": np.int64(3), "rate": np.float64(0.5), "names": ("a", "b"), "nested": {"x": [None, True, 1.5]},
    }  # fmt: skip

    assert checked_arguments(given) == {
        "rounds": 3,
        "rate": 0.5,
        "names": ["a", "b"],
        "nested": {"x": [None, True, 1.5]},
    }
    assert checked_arguments(None) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": {"w": np.zeros(2)}}, r"args: model\.w: an array; arrays are inputs"),
        ({"n": 2**64}, "args: n: an integer beyond 64 bits"),
        ({"x": ({"y": {3: 4}},)}, r"args: x\[0\]\.y: the key 3, which is no text"),
        ([1], "args: a value of type list instead of a mapping"),
        ({"x": "y" * 70_000}, "pass large values as inputs"),
    ],
)
def test_an_argument_that_is_no_json_value_is_refused_with_the_reason(given: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        checked_arguments(given)


def test_limits_are_known_by_name() -> None:
    assert checked_limits({"wall_s": 3, "processes": 4}) == RunLimits(wall_s=3.0, processes=4)
    assert checked_limits(None) == RunLimits()
    for wrong, message in (
        ({"walls": 3}, r"limits\.walls is not known: give a mapping of cpu_s, wall_s"),
        ({"wall_s": -1}, "limits: Expected"),
        ({"wall_s": "long"}, "limits: Expected"),
        (3, "limits is not known"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            checked_limits(wrong)


def test_small_inputs_travel_inside_the_message() -> None:
    values = packed({"n": 1, "name": "x"}, NO_REPOSITORY)
    arrays = packed({"w": np.arange(4)}, NO_REPOSITORY)

    assert values is not None
    assert values.json == '{"n":1,"name":"x"}'
    assert arrays is not None
    assert arrays.base64 is not None
    content = base64.b64decode(arrays.base64)
    assert parcels.unpack("npz", content)["w"].tolist() == [0, 1, 2, 3]
    assert packed({}, NO_REPOSITORY) is None
    assert packed(None, NO_REPOSITORY) is None


def test_inputs_that_fit_into_no_message_need_a_repository() -> None:
    with pytest.raises(InvalidInputError, match=r"take 800.* do not fit into a message.*FEDMON_REPOSITORY_URL"):
        packed({"w": np.zeros(100_000)}, NO_REPOSITORY)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"m": {"w": np.array([object()])}}, r"m\.w"), ([np.zeros(1)], "inputs is list"), ({"x": object}, "x")],
)
def test_inputs_that_are_no_values_are_named(given: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        packed(given, NO_REPOSITORY)


def test_a_plan_is_named_by_its_source_an_answer_or_a_digest(tmp_path: Path) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text("class P:\n    pass\n")
    answer = ApprovalReply(
        node_id="a",
        researcher_id="alice",
        id="1",
        session="s",
        sequence=1,
        plan_id="p",
        sha256=DIGEST,
        status=PlanStatus.APPROVED,
    )

    assert len(digest_of(plan)) == 64
    assert digest_of(plan) == digest_of(str(plan))
    assert digest_of(answer) == digest_of(f"sha256:{DIGEST}") == DIGEST
    with pytest.raises(InvalidInputError, match="is not a digest"):
        digest_of("sha256:abc")


def test_nodes_of_the_other_wire_run_no_plans(mosquitto: Broker, tmp_path: Path) -> None:
    settings = ResearcherSettings(id="alice", broker=mosquitto.settings, folder=tmp_path, wire="fedbiomed4")
    with (
        Federation(settings=settings) as federation,
        pytest.raises(InvalidInputError, match="Fed-BioMed run no plans"),
    ):
        federation.run(f"sha256:{DIGEST}")


def test_tags_and_ids_that_can_be_none_are_refused_before_anything_is_sent(mosquitto: Broker, tmp_path: Path) -> None:
    with Federation(mosquitto.url, folder=tmp_path / "r") as federation:
        for tags, message in (
            ("mri", r"tags is 'mri': give a list or tuple of tags, such as \['mri'\]"),
            ([""], "tags: give 1 to 64 texts"),
            (["x" * 257], "texts of 1 to 256 characters"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                federation.run(f"sha256:{DIGEST}", tags=tags)
        with pytest.raises(InvalidInputError, match="the run does not fit into a message"):
            federation.run(f"sha256:{DIGEST}", nodes=["a"], dataset="x" * 200_000)
        for job_id in ("", "a/b", "x" * 65):
            with pytest.raises(InvalidInputError, match="is no job id; `fedmon runs` lists those that nodes know"):
                federation.job(job_id)
