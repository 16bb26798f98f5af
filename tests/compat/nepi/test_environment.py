"""NEPI_LOGLEVEL and NEPI_LOG set the log levels of experiments; without them, nothing is set."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.compat.nepi.environment import PACKAGE, set_levels
from fedmon.experiment import ExperimentController
from fedmon.experiment.errors import InvalidExperimentError

NAMES = ("", "controller", "engine", "runner", "parallel", "resource.test::Talker", "resource.test::Other")


def logger(name: str) -> logging.Logger:
    return logging.getLogger(f"{PACKAGE}.{name}" if name else PACKAGE)


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Give each test loggers without levels, and restore the levels afterwards."""
    found = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    ours = {each: each.level for each in [*found, *map(logger, NAMES)] if each.name.startswith(PACKAGE)}
    for each in ours:
        each.setLevel(logging.NOTSET)
    yield
    for each, level in ours.items():
        each.setLevel(level)


def told(name: str) -> int:
    return logger(name).getEffectiveLevel()


def test_without_the_variables_nothing_is_set() -> None:
    set_levels({})
    set_levels({"NEPI_LOGLEVEL": "", "NEPI_LOG": " "})

    assert {logger(name).level for name in NAMES} == {logging.NOTSET}


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({"NEPI_LOGLEVEL": "debug"}, logging.DEBUG),
        ({"NEPI_LOGLEVEL": "CRITICAL"}, logging.CRITICAL),
        ({"NEPI_LOGLEVEL": "DEBUG", "NEPI_LOG": "all"}, logging.DEBUG),
        ({"NEPI_LOG": "ALL"}, logging.INFO),
    ],
)
def test_a_level_is_that_of_the_whole_package(environment: dict[str, str], level: int) -> None:
    set_levels(environment)

    assert {told(name) for name in NAMES} == {level}
    assert not any(logger(name).handlers for name in NAMES)


def test_named_components_have_the_level_and_all_others_error() -> None:
    set_levels({"NEPI_LOGLEVEL": "debug", "NEPI_LOG": "ExperimentController test::Talker"})
    assert {told(name) for name in ("controller", "engine", "resource.test::Talker")} == {logging.DEBUG}
    assert {told(name) for name in ("runner", "parallel", "resource.test::Other")} == {logging.ERROR}

    set_levels({"NEPI_LOG": "EXPERIMENTRUNNER"})
    assert (told("runner"), told("resource.test::Other")) == (logging.INFO, logging.ERROR)


def test_a_controller_takes_the_level_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEPI_LOGLEVEL", "debug")
    with ExperimentController("levels", tmp_path, journal=False) as ec:
        assert ec.logger.isEnabledFor(logging.DEBUG)

    monkeypatch.setenv("NEPI_LOGLEVEL", "loud")
    with pytest.raises(
        InvalidExperimentError, match=r"NEPI_LOGLEVEL in the environment is 'loud': take one of .*DEBUG"
    ):
        ExperimentController("levels", tmp_path, journal=False)
