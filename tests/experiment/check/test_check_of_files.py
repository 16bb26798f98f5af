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
set = [{ attribute = "critical", value = false, when = "after collect is STOPPED" }]

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
        "collector-without-trace": ((2,), 10),
        "unknown-resource": ((1, 77), 4),
        "condition-cycle": ((1, 2, 1), 4),
        "missing-part": ((1,), 4),
    }
    assert "start of resource 1 (train) waits for resource 2 (collect) to be STARTED" in str(found.plan)
    drawn = dot_of(picture_of(found.plan.state, names=found.plan.facts.names))
    assert '2 -> 1 [label="set critical: STOPPED"' in drawn
    assert "1 -> 2 [dir=none" in drawn


@pytest.mark.parametrize(
    ("metric", "kind", "severity", "says"),
    [
        ("host_cpu_buzy_ratio", "wrong-attribute", "error", "did you mean 'host_cpu_busy_ratio'?"),
        # What a Monitor takes for a metric of a plug-in is no typing error to its plan.
        ("lab_power_watts", "unknown-metric", "warning", "not in the table of metrics; see docs/metrics.md"),
    ],
)
def test_a_wrong_metric_in_a_file_is_told_once(file: Path, metric: str, kind: str, severity: str, says: str) -> None:
    file.write_text(
        '[experiment]\nid = "e"\n[[resource]]\nname = "n"\ntype = "fedmon::Node"\nattributes = { nodeId = "n" }\n'
        '[[resource]]\nname = "m"\ntype = "fedmon::Monitor"\nconnect = ["n"]\n'
        f'attributes = {{ metrics = ["{metric}"] }}\n'
    )

    (problem,) = check(file).plan.problems

    assert (problem.kind, problem.severity) == (kind, severity)
    assert says in problem.text
