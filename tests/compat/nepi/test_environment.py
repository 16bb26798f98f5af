"""NEPI_LOGLEVEL and NEPI_LOG set the log levels of experiments; without them, nothing is set."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.compat.nepi.environment import PACKAGE, set_levels
from fedmon.experiment import ExperimentController
from fedmon.experiment.errors import InvalidExperimentError

NAMES = ("controller", "engine", "runner", "parallel", "resource.test::Talker", "resource.test::Other")
ALL = set(NAMES)


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Give each test loggers without levels, and restore the levels afterwards."""
    loggers = [logging.getLogger(name) for name in (PACKAGE, *(f"{PACKAGE}.{name}" for name in NAMES))]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.NOTSET)
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


@pytest.mark.parametrize(
    ("environment", "level", "names"),
    [
        ({"NEPI_LOGLEVEL": "debug"}, logging.DEBUG, ALL),
        ({"NEPI_LOGLEVEL": "CRITICAL"}, logging.CRITICAL, ALL),
        ({"NEPI_LOGLEVEL": "DEBUG", "NEPI_LOG": "all"}, logging.DEBUG, ALL),
        ({"NEPI_LOG": "ALL"}, logging.INFO, ALL),
        ({"NEPI_LOG": "EXPERIMENTRUNNER"}, logging.INFO, {"runner"}),
        (
            {"NEPI_LOGLEVEL": "debug", "NEPI_LOG": "ExperimentController test::Talker"},
            logging.DEBUG,
            {"controller", "engine", "resource.test::Talker"},
        ),
    ],
)
def test_a_level_is_that_of_the_named_components_and_all_others_have_error(
    environment: dict[str, str], level: int, names: set[str]
) -> None:
    set_levels(environment)

    found = {name: logging.getLogger(f"{PACKAGE}.{name}").getEffectiveLevel() for name in NAMES}
    assert found == {name: level if name in names else logging.ERROR for name in NAMES}


def test_without_the_variables_nothing_is_set() -> None:
    set_levels({})
    set_levels({"NEPI_LOGLEVEL": "", "NEPI_LOG": " "})

    assert {logging.getLogger(f"{PACKAGE}.{name}").level for name in NAMES} == {logging.NOTSET}


def test_a_controller_takes_the_level_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEPI_LOGLEVEL", "debug")
    with ExperimentController("levels", tmp_path, journal=False) as ec:
        assert ec.logger.isEnabledFor(logging.DEBUG)

    monkeypatch.setenv("NEPI_LOGLEVEL", "loud")
    with pytest.raises(
        InvalidExperimentError, match=r"NEPI_LOGLEVEL in the environment is 'loud': take one of .*DEBUG"
    ):
        ExperimentController("levels", tmp_path, journal=False)
