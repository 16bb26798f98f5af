"""A researcher on a production broker: users, TLS and access lists as they are rendered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedmon.broker.users import Role
from fedmon.common.errors import ConflictError, ConnectionFailedError
from fedmon.researcher.federation import Federation
from tests.broker.production import PASSWORD, Production
from tests.support.echo_node import EchoNode
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    folder = tmp_path_factory.mktemp("production")
    # mosquitto runs as another user here, who must reach its own folder.
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    with Production(folder / "broker", {"alice": Role.RESEARCHER, "a": Role.NODE}) as running:
        yield running


@pytest.fixture
def federate(production: Production, tmp_path: Path) -> Iterator[Callable[..., Federation]]:
    with ExitStack() as opened:

        def federate(**options: Any) -> Federation:
            password_file = tmp_path / "password"
            password_file.touch(mode=0o600)
            password_file.write_text(options.pop("password", PASSWORD) + "\n")
            defaults: dict[str, Any] = {
                "username": "alice",
                "password_file": password_file,
                "ca_file": production.ca_file,
                "folder": tmp_path / "alice",
                "timeout_s": 30.0,
            }
            url = f"mqtts://localhost:{production.ports[Role.RESEARCHER]}"
            return opened.enter_context(Federation(url, **(defaults | options)))

        yield federate


def test_a_wrong_password_is_one_error_that_names_the_user_and_not_the_password(
    federate: Callable[..., Federation],
) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionFailedError) as caught:
        federate(password="opensesame")

    assert time.monotonic() - started < 7.5
    assert "user 'alice'" in str(caught.value)
    assert "localhost" in str(caught.value)
    assert "opensesame" not in str(caught.value)


def test_a_certificate_that_is_not_trusted_is_named(federate: Callable[..., Federation]) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionFailedError, match=r"certificate is not trusted.*ca_file"):
        federate(ca_file=None)

    assert time.monotonic() - started < 7.5


def test_a_ghost_that_only_an_operator_may_clear_stays_and_the_error_says_so(
    production: Production, federate: Callable[..., Federation]
) -> None:
    ghost = EchoNode(production.observer_port, "ghost").start()
    federation = federate()
    ghost.stop()
    wait_until(lambda: "ghost" in federation.nodes() and "ghost" not in federation.nodes().online)

    with pytest.raises(ConflictError, match="ask its operator"):
        federation.forget("ghost", timeout_s=0.3)

    assert "ghost" in federation.nodes()
