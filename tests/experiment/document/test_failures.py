"""What failures mean stands in a file: as a table of TOML or an element of XML."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.compat.nepi.xml_files import from_xml, to_xml
from fedmon.experiment import (
    ExperimentController,
    FailureManager,
    OptionalFailures,
    QuorumFailures,
)
from fedmon.experiment.check.document import check
from fedmon.experiment.document.description import QuorumDescription
from fedmon.experiment.document.files import from_toml, to_toml
from fedmon.experiment.errors import DescriptionError

RESOURCES = "".join(
    f'[[resource]]\nname = "{name}"\ntype = "local::Process"\nattributes = {{ command = ["true"] }}\n' for name in "abc"
)


def toml(failures: str) -> str:
    return f'[experiment]\nid = "e"\n\n{failures}\n\n{RESOURCES}'


QUORUM = '[failures]\npolicy = "quorum"\nat_least = 2\nof = ["a", "b", 3]'
OF_TYPE = '[failures]\npolicy = "quorum"\nat_least = 3\nrtype = "local::Process"'


@pytest.mark.parametrize(
    ("failures", "kind", "quorums"),
    [
        ("", FailureManager, ()),
        ('[failures]\npolicy = "critical"', FailureManager, ()),
        ('[failures]\npolicy = "optional"', OptionalFailures, ()),
        (QUORUM, QuorumFailures, (QuorumDescription(at_least=2, group=(1, 2, 3)),)),
        (OF_TYPE, QuorumFailures, (QuorumDescription(at_least=3, rtype="local::Process"),)),
        (
            f'{OF_TYPE}\nquorums = [{{ at_least = 1, of = ["a"] }}]',
            QuorumFailures,
            (QuorumDescription(at_least=3, rtype="local::Process"), QuorumDescription(at_least=1, group=(1,))),
        ),
    ],
)
def test_a_file_says_what_failures_mean_and_both_forms_say_the_same(
    tmp_path: Path, failures: str, kind: type[FailureManager], quorums: tuple[QuorumDescription, ...]
) -> None:
    description = from_toml(toml(failures))
    assert from_toml(to_toml(description)) == from_xml(to_xml(description)) == description
    path = tmp_path / "failures.toml"
    path.write_text(toml(failures))

    assert check(path).plan.is_possible
    with ExperimentController.load(path, local_dir=tmp_path) as ec:
        assert type(ec.fm) is kind
        assert getattr(ec.fm, "quorums", ()) == quorums


@pytest.mark.parametrize(
    ("failures", "named"),
    [
        ("[failures]", "policy"),
        ('[failures]\npolicy = "none"', "'critical', 'optional'|critical|policy"),
        ('[failures]\npolicy = "optional"\nat_least = 1\nof = ["a"]', "1 quorums"),
        ('[failures]\npolicy = "quorum"', "at_least"),
        ('[failures]\npolicy = "quorum"\nof = ["a"]', "at_least"),
        ('[failures]\npolicy = "quorum"\nat_least = 1', "one of the two"),
        (f'{QUORUM}\nrtype = "local::Process"', "one of the two"),
        (QUORUM.replace("2", "4"), "4 of 3"),
        (QUORUM.replace("2", "0"), "0 of 3"),
        (QUORUM.replace('"b"', '"d"'), "'d'"),
        (QUORUM.replace("3", "9"), "resource 9"),
        (f"{QUORUM}\nmany = 1", "many"),
    ],
)
def test_what_no_policy_is_is_refused_with_the_table(failures: str, named: str) -> None:
    with pytest.raises(DescriptionError, match=rf"(?s)failures.*({named})"):
        from_toml(toml(failures))
