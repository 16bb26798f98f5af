"""NEPI's environment variables NEPI_LOGLEVEL and NEPI_LOG."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fedmon.experiment.errors import InvalidExperimentError

PACKAGE = "fedmon.experiment"
_LOGGERS: Mapping[str, tuple[str, ...]] = {
    "experimentcontroller": ("controller", "engine", "failure", "journal"),
    "experimentrunner": ("runner",),
    "parallelrun": ("parallel",),
    "resourcefactory": ("factory",),
}
"""The loggers of NEPI's components; any other component is a type of resource."""


def set_levels(environment: Mapping[str, str]) -> None:
    """Set the log levels that an environment names; without the variables, nothing is set.

    ``NEPI_LOGLEVEL`` is the level of the package (default with ``NEPI_LOG``: INFO). If ``NEPI_LOG`` names components,
    separated by spaces, only these have that level, and all others ERROR; ALL means the whole package. Raises
    InvalidExperimentError.
    """
    named, components = environment.get("NEPI_LOGLEVEL", "").strip(), environment.get("NEPI_LOG", "").split()
    if not named and not components:
        return
    levels = logging.getLevelNamesMapping()
    level = levels.get(named.upper() or "INFO")
    if level is None:
        raise InvalidExperimentError(f"NEPI_LOGLEVEL in the environment is {named!r}: take one of {', '.join(levels)}")
    if "ALL" in map(str.upper, components):
        components = []
    logging.getLogger(PACKAGE).setLevel(logging.ERROR if components else level)
    for component in components:
        for name in _LOGGERS.get(component.lower(), (f"resource.{component}",)):
            logging.getLogger(f"{PACKAGE}.{name}").setLevel(level)
