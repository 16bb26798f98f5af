"""Fixtures of the whole suite."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.log import OUR_LOGGER
from fedmon.common.settings.keys import HISTORIC
from tests.support.brokers import ENGINES, Broker


@pytest.fixture
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A mosquitto of this test alone."""
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
    logger = logging.getLogger(OUR_LOGGER)
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def _home(factory: pytest.TempPathFactory) -> Path:
    return factory.getbasetemp()


def _running(name: str, factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(name, factory.mktemp(name))
    try:
        yield broker
    finally:
        broker.stop()
