"""A researcher on a production broker: users, TLS and access lists as they are rendered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.broker.users import Role
from fedmon.common.errors import ConflictError, ConnectionFailedError
from tests.broker.production import Production
from tests.support.echo_node import EchoNode
from tests.support.passwords import secret_file
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    folder = tmp_path_factory.mktemp("production")
    # mosquitto runs as another user here, who must reach its own folder.
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    with Production(folder / "broker", {"alice": Role.RESEARCHER, "a": Role.NODE}) as running:
        yield running


def test_a_wrong_password_is_one_error_that_names_the_user_and_not_the_password(
    production: Production, tmp_path: Path
) -> None:
    wrong = secret_file(tmp_path / "wrong", "opensesame")
    started = time.monotonic()
    with pytest.raises(ConnectionFailedError) as caught:
        production.researcher(tmp_path, password_file=wrong).start()

    assert time.monotonic() - started < 7.5
    assert "user 'alice'" in str(caught.value)
    assert "localhost" in str(caught.value)
    assert "opensesame" not in str(caught.value)


def test_a_certificate_that_is_not_trusted_is_named(production: Production, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionFailedError, match=r"certificate is not trusted.*ca_file"):
        production.researcher(tmp_path, ca_file=None).start()

    assert time.monotonic() - started < 7.5


def test_a_ghost_that_only_an_operator_may_clear_stays_and_the_error_says_so(
    production: Production, tmp_path: Path
) -> None:
    ghost = EchoNode(production.observer_port, "ghost").start()
    with production.researcher(tmp_path) as federation:
        ghost.stop()
        wait_until(lambda: "ghost" in federation.nodes() and "ghost" not in federation.nodes().online)

        with pytest.raises(ConflictError, match="ask its operator"):
            federation.forget("ghost", timeout_s=0.3)

        assert "ghost" in federation.nodes()
