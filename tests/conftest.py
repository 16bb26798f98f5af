"""Fixtures of the whole suite."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from fedmon.common.settings.keys import HISTORIC
from tests.support.brokers import ENGINES, Broker
from tests.support.shell_here import loggers_as_they_were

# Nothing that collection makes is garbage: looking for some doubles its time, and slows every later collection.
gc.disable()
# A suite in the background of a script ignores Ctrl-C, and so would the processes that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


class _Loggers(dict[str, Any]):
    """All loggers: pytest walks over them before each test, while a thread of an earlier one may still add some."""

    def values(self) -> Any:
        return list(super().values())


logging.Logger.manager.loggerDict = _Loggers(logging.Logger.manager.loggerDict)

# How fast examples are made depends on what else the machine does.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("suite")

LONG = (
    "tests/docs/test_federated_examples.py", "tests/docs/test_experiments_guide.py", "tests/end_to_end/test_demo.py",
    "tests/contract/test_federation.py", "tests/architecture/test_journeys.py", "tests/docs/",
    "tests/experiment/types/", "tests/end_to_end/", "tests/node/job/", "tests/researcher/",
    "tests/report/test_document.py", "tests/report/charts/", "tests/report/",
)  # fmt: skip
"""Files that take long, the longest first: nobody is to begin one when all others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the long files, otherwise keep the order; mark the tests of `make check`."""
    names = {
        path: path.as_posix().removeprefix(f"{Path(__file__).parents[1].as_posix()}/")
        for path in {item.path for item in items}
    }
    for item in items:
        if names[item.path].startswith(("tests/docs/", "tests/architecture/")) and not any(
            map(item.get_closest_marker, ("soak", "slow_docs", "batch"))
        ):
            item.add_marker("check")
    ranks = {
        path: next((at for at, start in enumerate(LONG) if name.startswith(start)), len(LONG))
        for path, name in names.items()
    }
    items.sort(key=lambda item: ranks[item.path])


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Place tests on workers as the suite needs it, when xdist has any."""
    from tests.support.placement import Placement

    return Placement(config, log)


@pytest.fixture
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A mosquitto of this test alone."""
    yield from _running("mosquitto", tmp_path_factory)


@pytest.fixture(scope="module")
def lasting_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A mosquitto of all tests of a file, for a node that they share."""
    yield from _running("mosquitto", tmp_path_factory)


@pytest.fixture(params=list(ENGINES))
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this test alone; the test runs once with each engine."""
    yield from _running(request.param, tmp_path_factory)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tester's own settings and folders out of every test."""
    home = _home(tmp_path_factory)
    for name in [name for name in os.environ if name.startswith("FEDMON_") or name in HISTORIC]:
        if name != "FEDMON_REQUIRE_ALL":
            monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home / name))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a verb that ran inside the test did to the loggers."""
    with loggers_as_they_were():
        yield


def _home(factory: pytest.TempPathFactory) -> Path:
    return factory.getbasetemp()


def _running(name: str, factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(name, factory.mktemp(name))
    try:
        yield broker
    finally:
        broker.stop()
