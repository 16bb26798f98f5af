"""What a job begins with: values that were given, a file of them, and what an aggregator came to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmon.experiment.federation.errors import MissingPartError
from fedmon.experiment.federation.job_files import read_inputs
from fedmon.experiment.resource import ResourceManager


def inputs_of(name: str, given: str | Mapping[str, Any] | None, source: ResourceManager | None) -> dict[str, Any]:
    """Return the inputs of the job called ``name``: those ``given``, or in the file of that path, and of ``source``.

    Raises MissingPartError where the source has no result yet, InvalidInputError and StorageError.
    """
    values = read_inputs(Path(given)) if isinstance(given, str) else dict(given or {})
    if source is not None:
        result = getattr(source, "result", None)
        if not isinstance(result, Mapping):
            raise MissingPartError(
                name,
                f"result in {source.name} to begin with",
                "have it wait for a fedmon::Aggregator to be STOPPED",
            )
        values.update(result)
    return values
