"""A file is planned and drawn before anything of it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.experiment.check.diagram import dot_of, picture_of
from fedmon.experiment.check.document import check

TEXT = """\
[experiment]
id = "e"

[[resource]]
name = "train"
type = "fedmon::Job"
start = ["after collect is STARTED", "after 77 is READY"]
set = [
    { attribute = "limits", value = { wall_s = 5 }, when = "after collect is STOPPED" },
    { attribute = "critical", value = false, when = "after collect is STOPPED" },
]

[[resource]]
name = "collect"
type = "fedmon::Collector"
connect = ["train"]
start = ["after train is STARTED"]
attributes = { critical = false }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(TEXT)
    return path


def test_all_that_is_wrong_in_a_file_is_found_with_its_line(file: Path) -> None:
    found = check(file)

    assert {problem.kind: (problem.guids, found.line(problem)) for problem in found.plan.problems} == {
        "wrong-attribute": ((1,), 4),
        "unknown-resource": ((1, 77), 4),
        "condition-cycle": ((1, 2, 1), 4),
        "missing-part": ((2,), 13),
        "not-stopped": ((1, 2), 4),
    }
    assert "start of resource 1 (train) waits for resource 2 (collect) to be STARTED" in str(found.plan)
    drawn = dot_of(picture_of(found.plan.state))
    assert '2 -> 1 [label="set limits: STOPPED"' in drawn
    assert "1 -> 2 [dir=none" in drawn


def test_a_wrong_metric_in_a_file_is_told_once(file: Path) -> None:
    file.write_text(
        '[experiment]\nid = "e"\n[[resource]]\nname = "n"\ntype = "fedmon::Node"\nattributes = { nodeId = "n" }\n'
        '[[resource]]\nname = "m"\ntype = "fedmon::Monitor"\nconnect = ["n"]\n'
        'attributes = { metrics = ["host_cpu_buzy_ratio"] }\n'
    )

    (problem,) = check(file).plan.problems

    assert (problem.kind, problem.severity) == ("wrong-attribute", "error")
    assert "did you mean 'host_cpu_busy_ratio'?" in problem.text


@pytest.mark.parametrize(
    ("part", "kind", "said"),
    [
        ("connect = ['n']", "refused-connection", "cannot be connected to itself"),
        ("guid = -3", "wrong-attribute", "guid -3 is not a positive whole number"),
    ],
)
def test_what_registering_refuses_is_a_problem(part: str, kind: str, said: str, file: Path) -> None:
    about = 'name = "n"\ntype = "fedmon::Collector"\nattributes = { traceName = "stdout" }'
    file.write_text(f'[experiment]\nid = "e"\n[[resource]]\n{about}\n{part}\n')

    problems = {str(each.kind): each.text for each in check(file).plan.problems}

    assert said in problems[kind]
