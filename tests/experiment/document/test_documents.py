"""Documents: what people write is understood, and whatever a document says comes back from both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.document.conditions import condition_from
from fedmon.experiment.document.description import (
    Description,
    ResourceDescription,
    SetDescription,
    Topology,
    TopologyEdge,
    TopologyNode,
    even,
)
from fedmon.experiment.document.files import from_toml, read, to_toml, write
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.types.local_process import LocalProcess

TEXT = """\
[experiment]
id = "two-sites"

[[resource]]
name = "site"
type = "fedmon::Node"

[[resource]]
name = "train"
type = "fedmon::Job"
connect = ["site"]
start = [
    "after site is READY for 2s",
    "when site.host_memory_used_ratio < 90 % for 3 samples within 1m",
]
stop = [{ group = ["site"], state = "FAILED" }]
retry.start = { times = 2 }

[resource.attributes]
plan = "mean.py"
"""
NAMES = {"train": 1, "a": 2, "b": 3, "c": 4}


def test_what_is_written_reads_like_what_a_person_wrote() -> None:
    site, train = from_toml(TEXT).resources
    text = to_toml(from_toml(TEXT))

    assert (site.guid, site.connections, train.connections) == (1, (2,), (1,))
    assert train.attributes == {"plan": "mean.py"}
    assert train.retry["start"].times == 2
    for condition in (
        '"after site is READY for 2s"',
        '"when site.host_memory_used_ratio < 0.9 for 3 samples within 60s"',
        '"after site is FAILED"',
        'connect = ["site"]',
    ):
        assert condition in text
    assert from_toml(text) == from_toml(TEXT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "after train is STARTED for 2s",
            StateCondition(number=1, group=(1,), state=ResourceState.STARTED, delay_s=2.0),
        ),
        (
            "when train.accuracy > 0.9 for 3 samples",
            MetricCondition(number=1, group=(1,), metric=Metric(name="accuracy", comparison=">", value=0.9, samples=3)),
        ),
        (
            'when a.gpu_power_watts{gpu="0", name="A 100"} > 200',
            MetricCondition(
                number=1,
                group=(2,),
                metric=Metric(name='gpu_power_watts{gpu="0", name="A 100"}', comparison=">", value=200.0),
            ),
        ),
        (
            "2 of [a, b, c] are STOPPED within 60s",
            StateCondition(number=1, group=(2, 3, 4), at_least=2, state=ResourceState.STOPPED, timeout_s=60.0),
        ),
        ("a is ready", StateCondition(number=1, group=(2,), state=ResourceState.READY)),
        ("all of [a, b] are READY", StateCondition(number=1, group=(2, 3), state=ResourceState.READY)),
        ("any of [a, b] are READY", StateCondition(number=1, group=(2, 3), at_least=1, state=ResourceState.READY)),
        (
            "after 17 is STOPPED for 2m30s",
            StateCondition(number=1, group=(17,), state=ResourceState.STOPPED, delay_s=150),
        ),
        (
            "when 1 of [a, 17].x.y<=-1e-3 within 5ms",
            MetricCondition(
                number=1,
                group=(2, 17),
                at_least=1,
                timeout_s=0.005,
                metric=Metric(name="x.y", comparison="<=", value=-0.001),
            ),
        ),
    ],
)
def test_conditions_are_understood(text: str, expected: AnyCondition) -> None:
    assert condition_from(text, NAMES, number=1) == expected


ODD = even(
    Description(
        exp_id="exp_1.a",
        local_dir='/tmp/x <&> "y"',
        topology=Topology(
            nodes=(
                TopologyNode(nid=0, annotations={"a": 1, "b": "True", "c": True}),
                TopologyNode(nid="0", annotations={"ip": "mine", "d": 1.5}),
            ),
            edges=(TopologyEdge(nid1=0, nid2="0", annotations={"nets": "mine"}),),
        ),
        resources=(
            ResourceDescription(
                guid=3,
                rtype="custom type",
                attributes={
                    "text": "None", "null": None, "yes": True, "count": 10**30, "ratio": 0.1, "empty": "",
                    "lines": "a\n\tb\r", "control": "\x00\x1b", "half": "\ud800", "table": {"a": [1, None, {"b": 2.5}]},
                    "json": {"json": "1"}, "many": [1, "a"], "": "no name", "wide": float("inf"), "ü.x": "[1, 2]",
                },
                conditions=(
                    (
                        ResourceAction.DEPLOY,
                        MetricCondition(
                            number=1, group=(4, 99), at_least=1,
                            metric=Metric(name="odd name = 1", comparison="!=", value=-1e-300),
                        ),
                    ),
                ),
                sets=(SetDescription(attribute="rate", value=None),),
                traces=("stdout", "a b"),
            ),
            ResourceDescription(guid=4, rtype="t", connections=(3, 77)),
        ),
    )
)  # fmt: skip


@pytest.mark.parametrize("suffix", [".xml", ".toml"])
def test_a_file_gives_what_was_written_odd_values_included(tmp_path: Path, suffix: str) -> None:
    path = write(ODD, tmp_path / "new" / f"exp{suffix}")

    assert read(path) == ODD
    assert [each.name for each in path.parent.iterdir()] == [path.name]


PATHS = """
[experiment]
id = "e"
local_dir = "runs"
[[resource]]
type = "fedmon::TrainingPlan"
attributes = { plan = "../plans/mean.py" }
[[resource]]
type = "local::Process"
attributes = { cwd = "/srv" }
[[resource]]
type = "fedmon::TrainingPlan"
attributes = { plan = "class Plan:\\n    pass" }
[[resource]]
type = "fedmon::Job"
attributes = { inputs = "start.npz" }
[[resource]]
type = "fedmon::Job"
attributes = { inputs = '{"w": [1.5]}' }
[[resource]]
type = "documents::Process"
attributes = { cwd = "work" }
"""


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ResourceFactory.register_type(type("Own", (LocalProcess,), {"_rtype": "documents::Process"}))
    (tmp_path / "site").mkdir()
    (tmp_path / "site/e.toml").write_text(PATHS)
    monkeypatch.chdir(tmp_path)

    found = read("site/e.toml")

    plan, process, source, file, text, derived = (each.attributes for each in found.resources)
    assert (found.local_dir, plan) == (str(tmp_path / "site/runs"), {"plan": str(tmp_path / "site/../plans/mean.py")})
    assert (process["cwd"], source["plan"].splitlines()[0]) == ("/srv", "class Plan:")
    assert derived == {"cwd": str(tmp_path / "site/work")}
    assert (file, text) == ({"inputs": str(tmp_path / "site/start.npz")}, {"inputs": '{"w": [1.5]}'})
