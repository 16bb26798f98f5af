"""Handing a training plan in: what fits goes in the message, the rest through the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.researcher.asking.submission import submission
from tests.researcher.conftest import Open
from tests.support.echo_node import EchoNode

NONE = RepositorySettings()


def plan_of(size: int, tmp_path: Path, character: str = "x") -> Path:
    path = tmp_path / "plan.py"
    path.write_text("# " + character * size + "\n")
    return path


def test_what_grows_on_the_wire_counts_as_it_grows(tmp_path: Path) -> None:
    control = plan_of(MAX_PAYLOAD_BYTES // 5, tmp_path, "\x01")

    setting = r"does not fit into a message.*`url` in \[repository\].*FEDMON_REPOSITORY_URL"
    with pytest.raises(InvalidInputError, match=setting):
        submission(control, description="", repository=NONE)


def test_a_description_that_no_node_would_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="16384 are allowed"):
        submission(plan_of(1, tmp_path), description="x" * 16_385, repository=NONE)


def test_a_repository_that_is_not_there_is_one_error_and_nothing_is_asked(
    node: EchoNode, federate: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_REPOSITORY_URL", "http://127.0.0.1:9/upload/")
    federation = federate()

    with pytest.raises(FedmonError, match=r"127\.0\.0\.1:9"):
        federation.approve(plan_of(MAX_PAYLOAD_BYTES, tmp_path))

    assert node.sent("approval") == []
