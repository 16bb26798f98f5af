"""Wires besides fedmon's own, loaded when a setting asks for one."""

from __future__ import annotations

import importlib
from typing import Any, Literal


def fedbiomed_dialect(side: Literal["node", "researcher"]) -> Any:
    """Return the class that speaks the wire of Fed-BioMed 4.4 at one side."""
    return importlib.import_module(f"fedmon.compat.fedbiomed.{side}_dialect").FedBioMedDialect
