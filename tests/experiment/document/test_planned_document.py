"""A document can be planned and drawn as it stands, before anything of it is made."""

from __future__ import annotations

from fedmon.experiment.document import from_toml
from fedmon.experiment.document.description import as_state, attributes_of, names_of
from fedmon.experiment.drawing import dot_of, picture_of
from fedmon.experiment.plan_problems import Facts
from fedmon.experiment.planning import plan

TEXT = """\
[experiment]
id = "e"

[[resource]]
name = "train"
type = "fedmon::Job"
start = ["after collect is STARTED", "after 77 is READY"]
set = [{ attribute = "rate", value = 1, when = "after collect is STOPPED" }]

[[resource]]
name = "collect"
type = "fedmon::Collector"
connect = ["train"]
start = ["after train is STARTED"]
attributes = { critical = false }
"""


def test_what_is_wrong_in_a_document_is_found_without_making_it() -> None:
    description = from_toml(TEXT)
    facts = Facts(names=names_of(description), attributes=attributes_of(description))
    found = plan(as_state(description), facts)

    assert {problem.kind: problem.guids for problem in found.problems} == {
        "collector-without-trace": (2,),
        "unknown-resource": (1, 77),
        "condition-cycle": (1, 2, 1),
        "missing-part": (1,),
    }
    assert "start of resource 1 (train) waits for resource 2 (collect) to be STARTED" in found.text()
    drawn = dot_of(picture_of(found.state, names=facts.names))
    assert '2 -> 1 [label="set rate: STOPPED"' in drawn
    assert "1 -> 2 [dir=none" in drawn
    assert not found.state.resources[2].critical
