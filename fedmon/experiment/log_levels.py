"""The levels of loggers that NEPI's variables in the environment name."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fedmon.experiment.errors import InvalidExperimentError
from fedmon.experiment.resource import logger_of

LEVEL, COMPONENTS = "NEPI_LOGLEVEL", "NEPI_LOG"
PACKAGE = "fedmon.experiment"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "experimentcontroller": ("controller", "engine", "failure"),
    "experimentrunner": ("runner",),
    "parallelrun": ("parallel",),
    "resourcefactory": ("factory",),
}


def set_levels(environment: Mapping[str, str]) -> None:
    """Set the levels that an environment names; where it names none, everything stays as the program has it.

    ``NEPI_LOGLEVEL`` is that of the whole package, INFO where only the other variable is there. With ``NEPI_LOG``,
    components with spaces between, it is theirs alone, and the rest tells errors: a component is a type of resources,
    or ExperimentController, ExperimentRunner, ParallelRun or ResourceFactory; ALL is the whole package. Where it is
    written is for the program to say, as ever. Raises InvalidExperimentError for what is no level.
    """
    named, components = environment.get(LEVEL, "").strip(), environment.get(COMPONENTS, "").split()
    if not named and not components:
        return
    known = logging.getLevelNamesMapping()
    level = known.get(named.upper() or "INFO")
    if level is None:
        raise InvalidExperimentError(f"{LEVEL} in the environment is {named!r}: take one of {', '.join(known)}")
    chosen = [] if "ALL" in map(str.upper, components) else components
    logging.getLogger(PACKAGE).setLevel(logging.ERROR if chosen else level)
    for component in chosen:
        for part in _PARTS.get(component.lower(), ()):
            logging.getLogger(f"{PACKAGE}.{part}").setLevel(level)
        if component.lower() not in _PARTS:
            logger_of(component).setLevel(level)
