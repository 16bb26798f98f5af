"""NEPI_LOGLEVEL and NEPI_LOG say what the loggers of experiments tell, and nothing is set where they are not given."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import InvalidExperimentError
from fedmon.experiment.log_levels import PACKAGE, set_levels
from fedmon.experiment.resource import ResourceManager
from tests.experiment.small_experiment import SmallExperiment


class Talker(ResourceManager):
    _rtype = "test::Talker"


class Other(ResourceManager):
    _rtype = "test::Other"


def loggers() -> list[logging.Logger]:
    found = [logging.getLogger(PACKAGE)]
    found += (each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger))
    return [each for each in found if each.name == PACKAGE or each.name.startswith(f"{PACKAGE}.")]


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Give each test loggers without levels, and give the levels that there were back."""
    before = {each.name: each.level for each in loggers()}
    for each in loggers():
        each.setLevel(logging.NOTSET)
    yield
    for each in loggers():
        each.setLevel(before.get(each.name, logging.NOTSET))


def told(name: str) -> int:
    return logging.getLogger(f"{PACKAGE}.{name}").getEffectiveLevel()


def test_nothing_is_set_where_the_environment_names_no_level() -> None:
    before = [each.level for each in loggers()]

    set_levels({})
    set_levels({"NEPI_LOGLEVEL": "", "NEPI_LOG": " "})

    assert [each.level for each in loggers()] == before


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

    assert {told(name) for name in ("controller", "engine", "runner", "resource.test::Talker")} == {level}
    assert all(not each.handlers for each in loggers())


def test_named_components_have_the_level_and_the_rest_tells_errors() -> None:
    set_levels({"NEPI_LOGLEVEL": "debug", "NEPI_LOG": "ExperimentController test::Talker"})

    assert {told(name) for name in ("controller", "engine", "resource.test::Talker")} == {logging.DEBUG}
    assert {told(name) for name in ("runner", "parallel", "resource.test::Other")} == {logging.ERROR}


def test_components_without_a_level_tell_how_it_goes() -> None:
    set_levels({"NEPI_LOG": "EXPERIMENTRUNNER"})

    assert (told("runner"), told("controller")) == (logging.INFO, logging.ERROR)


def test_resources_speak_at_the_level_of_their_type(caplog: pytest.LogCaptureFixture) -> None:
    ec = SmallExperiment()
    set_levels({"NEPI_LOG": "test::Talker"})

    for rclass in (Talker, Other):
        ec.add(rclass).info("here I am")

    said = [(record.name, record.getMessage()) for record in caplog.records]
    assert [name for name, _ in said] == [f"{PACKAGE}.resource.test::Talker"]
    assert said[0][1].endswith("here I am")


def test_a_controller_takes_the_level_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEPI_LOGLEVEL", "debug")

    with ExperimentController("levels", tmp_path, journal=False) as ec:
        assert ec.logger.isEnabledFor(logging.DEBUG)


def test_what_is_no_level_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEPI_LOGLEVEL", "loud")

    with pytest.raises(
        InvalidExperimentError, match=r"NEPI_LOGLEVEL in the environment is 'loud': take one of .*DEBUG"
    ):
        ExperimentController("levels", tmp_path, journal=False)
