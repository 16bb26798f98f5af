"""How many threads an experiment may have."""

from __future__ import annotations

import os

from fedmon.experiment.errors import InvalidExperimentError
from fedmon.experiment.pool import MAX_THREADS


def threads_asked(given: object) -> int:
    """Return how many threads there may be; null: as the environment says. Raises InvalidExperimentError."""
    where = "nthreads" if given is not None else "NEPI_NTHREADS in the environment"
    asked = os.environ.get("NEPI_NTHREADS", MAX_THREADS) if given is None else given
    try:
        number = int(str(asked))
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidExperimentError(f"{where} is {asked!r}: take a whole number from 1, or 0 for {MAX_THREADS}")
    return number or MAX_THREADS
