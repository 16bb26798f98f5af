"""Former path of `fedmon.experiment`."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

warnings.warn("fedmon.researcher.experiment is now fedmon.experiment", DeprecationWarning, stacklevel=2)
for _former, _name in (("federation", "types"), ("natures", "natures")):
    # Documented with the former path.
    sys.modules[f"{__name__}.{_former}"] = importlib.import_module(f"fedmon.experiment.{_name}")


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("fedmon.experiment"), name)
